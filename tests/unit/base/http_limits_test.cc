// A server's limits per peer, and admission before the body is read.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/server/http.h"
#include "tests/support/http_service.h"

namespace larder {
namespace {

using ::testing::Contains;
using ::testing::Pair;

void echo_body(const HttpRequest& request, const HttpRespond& respond) {
    respond({.content_type = "text/plain", .body = request.authenticated_as + "\n" + request.body});
}

std::string tcp(const test::HttpService& service) {
    return "127.0.0.1:" + std::to_string(service.port);
}

TEST(HttpLimits, ExcessRequestGets429WithRetryAfter) {
    const test::HttpService service(echo_body, {.requests_per_second_per_peer = 1e-6, .request_burst_per_peer = 3});
    for (int i = 0; i < 3; ++i) EXPECT_EQ(http_request(tcp(service), "GET", "/")->status, 200u);
    const auto refused = http_request(tcp(service), "POST", "/", std::string(100'000, 'b'));
    ASSERT_TRUE(refused) << refused.error().message;
    EXPECT_EQ(refused->status, 429u);
    EXPECT_THAT(refused->headers, Contains(Pair("Retry-After", "1000000")));
    EXPECT_EQ(http_request(service.socket, "GET", "/")->status, 200u) << "the user on the Unix socket is another peer";
}

TEST(HttpLimits, ExcessConnectionIsClosed) {
    const test::HttpService service(echo_body, {.connections_per_peer_max = 2});
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, service.socket.data(), service.socket.size());
    std::vector<FileDescriptor> open;
    for (int i = 0; i < 2; ++i) {
        open.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        ASSERT_EQ(::connect(open.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
        // An answer shows that the server accepted the connection.
        ASSERT_EQ(::send(open.back().get(), "GET / HTTP/1.1\r\n\r\n", 18, 0), 18);
        char letter = 0;
        ASSERT_EQ(::read(open.back().get(), &letter, 1), 1);
    }
    EXPECT_FALSE(http_request(service.socket, "GET", "/"));
    EXPECT_TRUE(http_request(tcp(service), "GET", "/")) << "another peer";
    open.pop_back();
    // The server notices the close some time later.
    while (!http_request(service.socket, "GET", "/")) {
    }
}

TEST(HttpLimits, IdleConnectionIsClosed) {
    const test::HttpService service(echo_body, {.idle_timeout_ms = 1});
    const FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, service.socket.data(), service.socket.size());
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::send(fd.get(), "GET / HTTP/1.1\r\n\r\n", 18, 0), 18);
    // Reads the answer, and then blocks for ever unless the server closes.
    std::string answer;
    char buffer[256];
    for (ssize_t got = 0; (got = ::read(fd.get(), buffer, sizeof buffer)) > 0;) {
        answer.append(buffer, static_cast<std::size_t>(got));
    }
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 ")) << answer;
}

TEST(HttpLimits, UnadmittedRequestIsRefusedBeforeItsBody) {
    std::atomic<int> handled = 0;
    HttpServerOptions options{.body_bytes_max = 8u << 20};
    options.admit = [](HttpRequest& request) -> std::optional<HttpResponse> {
        EXPECT_TRUE(request.body.empty());
        request.authenticated_as = request.bearer_token;
        if (request.bearer_token == "good") return std::nullopt;
        return http_error(401, "unauthenticated", "no");
    };
    const test::HttpService service(
        [&](const HttpRequest& request, const HttpRespond& respond) {
            ++handled;
            echo_body(request, respond);
        },
        options);
    const std::string body(4u << 20, 'b');
    const auto refused = http_request(tcp(service), "PUT", "/x", body, {.bearer_token = "bad"});
    ASSERT_TRUE(refused) << refused.error().message;
    EXPECT_EQ(refused->status, 401u);
    EXPECT_EQ(handled, 0);
    const auto admitted = http_request(tcp(service), "PUT", "/x", body, {.bearer_token = "good"});
    ASSERT_TRUE(admitted) << admitted.error().message;
    EXPECT_EQ(admitted->body, "good\n" + body);
}

TEST(HttpEndpoints, ParseAsUnixPathUrlOrAddress) {
    EXPECT_EQ(parse_http_endpoint("unix:/run/a.sock")->path, "/run/a.sock");
    EXPECT_EQ(parse_http_endpoint("unix:a.sock")->path, "a.sock");
    EXPECT_EQ(parse_http_endpoint("/run/a.sock")->path, "/run/a.sock");
    EXPECT_EQ(parse_http_endpoint("http://10.0.0.1:80")->port, 80);
    EXPECT_FALSE(parse_http_endpoint("http://10.0.0.1:80")->tls);
    EXPECT_EQ(parse_http_endpoint("https://allocator.cluster:7600/")->host, "allocator.cluster");
    EXPECT_TRUE(parse_http_endpoint("https://allocator.cluster:7600")->tls);
    EXPECT_EQ(parse_http_endpoint("https://[::1]:7600")->host, "::1");
    EXPECT_EQ(parse_http_endpoint("https://localhost:7600")->host, "localhost");
    EXPECT_EQ(parse_http_endpoint("127.0.0.1:9464")->host, "127.0.0.1");
    for (const char* wrong : {"", "unix:", "https://", "https://host", "http://host:port", "https://host:1/path",
                              "https://user@host:1", "ftp://host:1:2", "host:80"}) {
        EXPECT_FALSE(parse_http_endpoint(wrong)) << wrong;
    }
    EXPECT_THAT(parse_http_endpoint("host:80").error().message, ::testing::HasSubstr("https://HOST:PORT"));
}

}  // namespace
}  // namespace larder
