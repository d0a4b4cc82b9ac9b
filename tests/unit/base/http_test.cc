#include "base/server/http.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <future>
#include <thread>
#include <vector>

#include "base/file.h"
#include "tests/support/temp_directory.h"

namespace larder {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Echoes each request as lines of text. A few paths misbehave on purpose.
class Echo {
public:
    void operator()(const HttpRequest& request, HttpRespond respond) {
        const std::string first = request.path.empty() ? "" : request.path[0];
        if (first == "throw") throw std::runtime_error("thrown");
        if (first == "drop") return;
        if (first == "fail") return respond(http_error(Error{ErrorCode::not_found, "no such \"thing\"", 0}));
        if (first == "large") return respond({200, "text/plain", std::string(8u << 20, 'x'), {}});
        if (first == "later") {
            workers->emplace_back(
                [respond, body = request.body] { respond({202, "text/plain", body, {{"X-Late", "1"}}}); });
            return;
        }
        if (first == "twice") respond({200, "text/plain", "first", {}});
        std::string body = request.method;
        for (const auto& segment : request.path) body += "\n/" + segment;
        for (const auto& [key, value] : request.query) body += "\n?" + key + "=" + value;
        body += "\npeer " + (request.peer ? std::to_string(request.peer->uid) + " " + std::to_string(request.peer->pid)
                                          : std::string("none"));
        body += "\n" + request.body;
        respond({200, "text/plain", body, {}});
    }

    std::shared_ptr<std::vector<std::jthread>> workers = std::make_shared<std::vector<std::jthread>>();
};

class HttpTest : public ::testing::Test {
protected:
    void start(const HttpServerOptions& options = {}) {
        server = std::make_unique<HttpServer>(context, echo, options);
        const auto listening = server->listen_unix(socket, 0600);
        ASSERT_TRUE(listening) << listening.error().message;
        const auto tcp = server->listen_tcp("127.0.0.1:0");
        ASSERT_TRUE(tcp) << tcp.error().message;
        port = *tcp;
        thread = std::jthread([this] { context.run(); });
    }
    void TearDown() override {
        echo.workers->clear();
        boost::asio::post(context, [this] { server.reset(); });
        guard.reset();
    }
    HttpResponse call(const std::string& method, const std::string& target, const std::string& body = {}) {
        auto answer = http_request(socket, method, target, body);
        EXPECT_TRUE(answer) << answer.error().message;
        return answer ? *answer : HttpResponse{};
    }
    // Sends the bytes unchanged. Returns all that the server sends until it closes.
    std::string raw(std::string_view text) {
        const FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::memcpy(address.sun_path, socket.data(), socket.size());
        EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
        EXPECT_EQ(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
        ::shutdown(fd.get(), SHUT_WR);
        std::string answer;
        char buffer[4096];
        for (ssize_t got = 0; (got = ::read(fd.get(), buffer, sizeof buffer)) > 0;) {
            answer.append(buffer, static_cast<std::size_t>(got));
        }
        return answer;
    }

    test::TempDirectory directory;
    std::string socket = directory / "http.sock";
    std::uint16_t port = 0;
    boost::asio::io_context context;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard = make_work_guard(context);
    Echo echo;
    std::unique_ptr<HttpServer> server;
    std::jthread thread;
};

TEST_F(HttpTest, HandlerGetsTheDecodedRequest) {
    start();
    const auto answer = call("POST", "/v1/a%20b%2Fc/?x=1&y=a+b%26&z", "hello");
    EXPECT_EQ(answer.status, 200u);
    EXPECT_EQ(answer.content_type, "text/plain");
    EXPECT_EQ(answer.body, "POST\n/v1\n/a b/c\n?x=1\n?y=a b&\n?z=\npeer " + std::to_string(::getuid()) + " " +
                               std::to_string(::getpid()) + "\nhello");
}

TEST_F(HttpTest, TcpRequestHasNoPeerCredentials) {
    start();
    const auto answer = http_request("127.0.0.1:" + std::to_string(port), "GET", "/metrics");
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_THAT(answer->body, HasSubstr("peer none"));
}

TEST_F(HttpTest, AnswersFromAnotherThread) {
    start();
    const auto answer = call("POST", "/later", "body");
    EXPECT_EQ(answer.status, 202u);
    EXPECT_EQ(answer.body, "body");
    EXPECT_THAT(answer.headers, ::testing::Contains(std::pair<std::string, std::string>("X-Late", "1")));
}

TEST_F(HttpTest, CarriesLargeAnswers) {
    start();
    EXPECT_EQ(call("GET", "/large").body, std::string(8u << 20, 'x'));
}

TEST_F(HttpTest, OnlyTheFirstAnswerCounts) {
    start();
    EXPECT_EQ(call("GET", "/twice").body, "first");
    EXPECT_THAT(call("GET", "/after").body, StartsWith("GET\n/after")) << "the second answer went to nobody";
}

TEST_F(HttpTest, HandlerThatThrowsOrDoesNotAnswerGives500) {
    start();
    const auto thrown = call("GET", "/throw");
    EXPECT_EQ(thrown.status, 500u);
    EXPECT_EQ(error_of_response(thrown).message, "thrown");
    const auto dropped = call("GET", "/drop");
    EXPECT_EQ(dropped.status, 500u);
    EXPECT_EQ(error_of_response(dropped).code, ErrorCode::internal);
}

TEST_F(HttpTest, ErrorsKeepTheirCodeAndMessage) {
    start();
    const auto answer = call("GET", "/fail");
    EXPECT_EQ(answer.status, 404u);
    EXPECT_EQ(answer.body, "{\"error\":{\"code\":\"not_found\",\"message\":\"no such \\\"thing\\\"\"}}\n");
    const Error error = error_of_response(answer);
    EXPECT_EQ(error.code, ErrorCode::not_found);
    EXPECT_EQ(error.message, "no such \"thing\"");
    EXPECT_EQ(error_of_response({503, "text/html", "<html>", {}}).code, ErrorCode::unavailable);
}

TEST_F(HttpTest, JsonIsNeitherStoredNorTakenForAScript) {
    start();
    const std::string json = raw("GET /fail HTTP/1.1\r\nConnection: close\r\n\r\n");
    EXPECT_THAT(json, HasSubstr("Content-Type: application/json\r\n"));
    EXPECT_THAT(json, HasSubstr("Cache-Control: no-store\r\n"));
    EXPECT_THAT(json, HasSubstr("X-Content-Type-Options: nosniff\r\n"));
}

TEST_F(HttpTest, OversizedBodyGets413WithReason) {
    start({.body_bytes_max = 1000});
    EXPECT_EQ(call("PUT", "/x", std::string(1000, 'b')).status, 200u);
    const auto answer = call("PUT", "/x", std::string(4u << 20, 'b'));
    EXPECT_EQ(answer.status, 413u);
    EXPECT_THAT(error_of_response(answer).message, HasSubstr("1000 bytes"));
    const std::string chunked =
        raw("PUT /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n800\r\n" + std::string(2048, 'c') + "\r\n0\r\n\r\n");
    EXPECT_THAT(chunked, StartsWith("HTTP/1.1 413 "));
}

TEST_F(HttpTest, OversizedHeaderGets431) {
    start({.header_bytes_max = 1024});
    EXPECT_THAT(raw("GET / HTTP/1.1\r\nX: " + std::string(5000, 'h') + "\r\n\r\n"), StartsWith("HTTP/1.1 431 "));
}

TEST_F(HttpTest, InvalidHttpGets400) {
    start();
    EXPECT_THAT(raw("hello there\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
    EXPECT_THAT(raw(std::string("\x16\x03\x01\x00\x00\r\n\r\n", 9)), StartsWith("HTTP/1.1 400 "));
    EXPECT_THAT(raw("GET /%zz HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
    EXPECT_THAT(raw("GET nowhere HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
    EXPECT_EQ(raw("GET / HTT"), "") << "an unfinished request is answered by closing";
    EXPECT_EQ(call("GET", "/").status, 200u) << "and the server goes on";
}

TEST_F(HttpTest, KeepsAConnectionForTheNextRequest) {
    start();
    const std::string answers =
        raw("GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\nConnection: close\r\n\r\nGET /c HTTP/1.1\r\n\r\n");
    EXPECT_THAT(answers, HasSubstr("/a"));
    EXPECT_THAT(answers, HasSubstr("/b"));
    EXPECT_THAT(answers, ::testing::Not(HasSubstr("/c"))) << "after Connection: close";
}

TEST_F(HttpTest, HeadAnswerHasTheLengthAndNoBody) {
    start();
    const std::string answer = raw("HEAD /large HTTP/1.1\r\nConnection: close\r\n\r\n");
    EXPECT_THAT(answer, HasSubstr("Content-Length: 8388608\r\n"));
    EXPECT_THAT(answer, ::testing::EndsWith("\r\n\r\n"));
}

TEST_F(HttpTest, ServesManyClientsAtOnce) {
    start();
    std::atomic<int> good = 0;
    {
        std::vector<std::jthread> clients;
        for (int client = 0; client < 8; ++client) {
            clients.emplace_back([&, client] {
                for (int i = 0; i < 25; ++i) {
                    const std::string body = std::to_string(client * 1000 + i);
                    const auto answer = http_request(socket, "POST", "/echo", body);
                    if (answer && answer->status == 200 && answer->body.ends_with("\n" + body)) ++good;
                }
            });
        }
    }
    EXPECT_EQ(good, 8 * 25);
}

TEST_F(HttpTest, ClosesConnectionsAboveTheLimit) {
    start({.connections_max = 0});
    const auto answer = http_request(socket, "GET", "/");
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::unavailable) << answer.error().message;
}

TEST_F(HttpTest, IdleClientsOfOneListenerDoNotShutOutAnother) {
    start({.connections_max = 2});
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::vector<FileDescriptor> idle;
    for (int i = 0; i < 2; ++i) {
        idle.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        ASSERT_EQ(::connect(idle.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    }
    // Connections are accepted in their order, so the server has counted the idle ones before this one.
    EXPECT_FALSE(http_request("127.0.0.1:" + std::to_string(port), "GET", "/"));
    EXPECT_EQ(call("GET", "/").status, 200u);
}

TEST_F(HttpTest, SlowRequestIsCutOff) {
    start({.request_timeout_ms = 1});
    const FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, socket.data(), socket.size());
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::send(fd.get(), "GET ", 4, MSG_NOSIGNAL), 4);
    char buffer[64];
    EXPECT_LE(::read(fd.get(), buffer, sizeof buffer), 0) << "blocks for ever unless the server closes";
}

TEST_F(HttpTest, SocketHasItsModeAndIsRemovedOnStop) {
    start();
    struct stat status{};
    ASSERT_EQ(::stat(socket.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    std::promise<void> stopped;
    boost::asio::post(context, [&] {
        server->stop();
        stopped.set_value();
    });
    stopped.get_future().wait();
    EXPECT_NE(::stat(socket.c_str(), &status), 0);
    const auto answer = http_request(socket, "GET", "/");
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::unavailable);
    EXPECT_THAT(answer.error().message, HasSubstr(socket));
}

TEST_F(HttpTest, AnswerAfterTheServerIsGoneIsIgnored) {
    std::promise<HttpRespond> taken;
    server = std::make_unique<HttpServer>(context,
                                          [&](const HttpRequest&, HttpRespond respond) { taken.set_value(respond); });
    ASSERT_TRUE(server->listen_unix(socket, 0600));
    thread = std::jthread([this] { context.run(); });
    auto client = std::async(std::launch::async, [this] { return http_request(socket, "GET", "/"); });
    HttpRespond respond = taken.get_future().get();
    std::promise<void> gone;
    boost::asio::post(context, [&] {
        server.reset();
        gone.set_value();
    });
    gone.get_future().wait();
    respond({200, "text/plain", "late", {}});
    const auto answer = client.get();
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::unavailable);
}

TEST_F(HttpTest, RequestThatWasReadWhenTheServerEndsIsNotHandled) {
    bool is_handled = false;
    boost::asio::io_context own;
    server = std::make_unique<HttpServer>(own, [&](const HttpRequest&, const HttpRespond&) { is_handled = true; });
    ASSERT_TRUE(server->listen_unix(socket, 0600));
    const FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, socket.data(), socket.size());
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const std::string request = "GET / HTTP/1.1\r\nHost: larder\r\n\r\n";
    ASSERT_EQ(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
    while (server->connections() == 0) own.run_one();  // the request is read when its connection is accepted
    server.reset();
    own.run();
    EXPECT_FALSE(is_handled);
}

TEST_F(HttpTest, TakesOverOnlyADeadServersSocket) {
    start();
    HttpServer other(context, echo);
    const auto taken = other.listen_unix(socket, 0600);
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code, ErrorCode::already_exists);
    const std::string stale = directory / "stale.sock";
    {
        const FileDescriptor dead(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::memcpy(address.sun_path, stale.data(), stale.size());
        ASSERT_EQ(::bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    }
    HttpServer third(context, echo);
    EXPECT_TRUE(third.listen_unix(stale, 0600));
    std::ofstream(directory / "plain") << "precious";
    const auto plain = third.listen_unix(directory / "plain", 0600);
    ASSERT_FALSE(plain);
    EXPECT_THAT(plain.error().message, HasSubstr("not a socket"));
    const auto longer = third.listen_unix("/" + std::string(200, 'x'), 0600);
    ASSERT_FALSE(longer);
    EXPECT_EQ(longer.error().code, ErrorCode::invalid_argument);
}

TEST(HttpAddresses, InvalidAddressesAreErrors) {
    boost::asio::io_context context;
    HttpServer server(context, Echo());
    for (const char* address : {"", "9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "example.org:80", ":80"}) {
        const auto listening = server.listen_tcp(address);
        ASSERT_FALSE(listening) << address;
        EXPECT_EQ(listening.error().code, ErrorCode::invalid_argument) << address;
        EXPECT_FALSE(http_request(address, "GET", "/")) << address;
    }
    EXPECT_TRUE(server.listen_tcp("localhost:0"));
}

TEST(HttpClient, SilentServerGivesATimeout) {
    const test::TempDirectory directory;
    const std::string path = directory / "silent.sock";
    const FileDescriptor silent(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    ASSERT_EQ(::bind(silent.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(silent.get(), 4), 0);
    const auto answer = http_request(path, "GET", "/", {}, {.timeout_ms = 20});
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::timeout);
}

}  // namespace
}  // namespace larder
