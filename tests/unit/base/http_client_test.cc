// Tests that the client reuses connections, limits answers and reads addresses. Plain requests and answers are tested
// in http_test.cc and http_tls_test.cc.

#include "base/server/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/file.h"
#include "base/server/http.h"
#include "tests/support/http_service.h"
#include "tests/support/temp_directory.h"

namespace larder {
namespace {

using ::testing::HasSubstr;

HttpResponse text(std::string body) {
    return {.content_type = "text/plain", .body = std::move(body)};
}

std::size_t connections(test::HttpService& service) {
    return service.on_thread([&] { return service.server().connections(); });
}

void answer_by_path(const HttpRequest& request, const HttpRespond& respond) {
    const std::string path = request.path.empty() ? "" : request.path[0];
    if (path == "redirect") return respond({.status = 302, .body = "", .headers = {{"Location", "/text"}}});
    if (path == "header") {
        HttpResponse large;
        for (int i = 0; i < 10; ++i) large.headers.emplace_back("X-" + std::to_string(i), std::string(8'000, 'h'));
        return respond(large);
    }
    if (path == "silent") {
        return respond(
            {.content_type = "text/event-stream", .body = ": hello\n\n", .stream = std::make_shared<HttpStream>()});
    }
    respond(text(request.method + " " + path + " " + request.body));
}

TEST(HttpClientConnection, IsKeptForTheNextRequest) {
    test::HttpService service(answer_by_path);
    HttpClient client(service.socket);
    for (int i = 0; i < 3; ++i) {
        const std::string body = "b" + std::to_string(i);
        EXPECT_EQ(client.request("POST", "/text", body)->body, "POST text " + body);
        EXPECT_EQ(connections(service), 1u);
    }
    EXPECT_EQ(client.request("GET", "/text")->body, "GET text ") << "nothing is left of the previous request";
    EXPECT_EQ(client.request("DELETE", "/text")->body, "DELETE text ");
    EXPECT_EQ(client.request("PUT", "/text")->body, "PUT text ");
    EXPECT_EQ(connections(service), 1u);
}

TEST(HttpClientConnection, IsReplacedOnceTheServerHasClosedIt) {
    test::HttpService service(answer_by_path, {.idle_timeout_ms = 1});
    HttpClient client(service.socket);
    ASSERT_TRUE(client.request("GET", "/text"));
    while (connections(service) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto answer = client.request("POST", "/text", "again");
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->body, "POST text again");
}

TEST(HttpClientLimits, LargerAnswerIsAnError) {
    test::HttpService service(answer_by_path);
    HttpClient client(service.socket);
    const std::string body(1000, 'b');
    EXPECT_TRUE(client.request("POST", "/", body, {.answer_bytes_max = 1006}));
    const auto answer = client.request("POST", "/", body, {.answer_bytes_max = 1005});
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::protocol);
    EXPECT_THAT(answer.error().message, HasSubstr("its body is larger than 1005 bytes"));
    const auto header = client.request("GET", "/header");
    ASSERT_FALSE(header);
    EXPECT_EQ(header.error().code, ErrorCode::protocol);
    EXPECT_THAT(header.error().message, HasSubstr("its header is larger"));
    EXPECT_TRUE(client.request("GET", "/")) << "the client can be used after an error";
}

TEST(HttpClientLimits, SilentStreamTimesOut) {
    test::HttpService service(answer_by_path);
    std::string got;
    const auto take = [&](std::string_view part) {
        got += part;
        return true;
    };
    const auto ended = http_get_stream(service.socket, "/silent", take, {.timeout_ms = 20});
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code, ErrorCode::timeout);
    EXPECT_THAT(got, ::testing::AnyOf("", ": hello\n\n")) << "a busy machine may time out before the first piece";
}

TEST(HttpClientAddresses, RedirectIsNotFollowed) {
    test::HttpService service(answer_by_path);
    const auto answer = http_request(service.socket, "GET", "/redirect");
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->status, 302u);
    EXPECT_THAT(answer->headers, ::testing::Contains(std::pair<std::string, std::string>("Location", "/text")));
}

TEST(HttpClientAddresses, ProxyOfTheEnvironmentIsNotUsed) {
    test::HttpService service(answer_by_path);
    for (const char* name : {"http_proxy", "all_proxy"}) ::setenv(name, "http://127.0.0.1:1", 1);
    const auto answer = http_request("127.0.0.1:" + std::to_string(service.port), "GET", "/text");
    for (const char* name : {"http_proxy", "all_proxy"}) ::unsetenv(name);
    EXPECT_TRUE(answer) << answer.error().message;
}

TEST(HttpClientAddresses, ClosedPortIsUnavailable) {
    std::string address;
    {
        const test::HttpService service(answer_by_path);
        address = "http://127.0.0.1:" + std::to_string(service.port);
    }
    const auto answer = http_request(address, "GET", "/");
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::unavailable);
    EXPECT_EQ(answer.error().message, "connect to " + address + ": Connection refused");
}

// Servers that stand in for each other. Each answers with its own name, or 421 if it is not in charge.
class HttpClientOfSeveral : public ::testing::Test {
protected:
    HttpHandler named(const std::string& name, const std::atomic<bool>& in_charge) {
        return [this, name, &in_charge](const HttpRequest&, const HttpRespond& respond) {
            ++requests;
            if (!in_charge) return respond(http_error(421, "unavailable", name + " stands by"));
            respond({.content_type = "text/plain", .body = name});
        };
    }

    static std::string ask(HttpClient& asked) {
        const auto answer = asked.request("GET", "/");
        return answer ? answer->body : answer.error().message;
    }

    std::atomic<int> requests = 0;
    std::atomic<bool> a_leads = true;
    std::atomic<bool> b_leads = false;
    test::HttpService a{named("a", a_leads)};
    test::HttpService b{named("b", b_leads)};
    HttpClient client{a.socket + ", " + b.socket};
};

TEST_F(HttpClientOfSeveral, GoesToTheServerInChargeAndStaysThere) {
    EXPECT_EQ(ask(client), "a");
    EXPECT_EQ(requests, 1);
    a_leads = false;
    b_leads = true;
    EXPECT_EQ(ask(client), "b");
    EXPECT_EQ(requests, 3);
    EXPECT_EQ(ask(client), "b");
    EXPECT_EQ(requests, 4);
    b_leads = false;
    EXPECT_THAT(ask(client), HasSubstr("stands by"));
    EXPECT_EQ(requests, 6) << "each is asked once";
}

TEST_F(HttpClientOfSeveral, PassesOverServersThatAreGone) {
    b_leads = true;
    HttpClient with_gone("/nowhere/a.sock,http://127.0.0.1:1," + b.socket);
    EXPECT_EQ(ask(with_gone), "b");
    std::string streamed;
    EXPECT_TRUE(with_gone.get_stream("/", [&](std::string_view part) {
        streamed += part;
        return true;
    }));
    EXPECT_EQ(streamed, "b");
    HttpClient all_gone("/nowhere/a.sock,/nowhere/b.sock");
    EXPECT_THAT(ask(all_gone), HasSubstr("connect to /nowhere/b.sock"));
}

TEST_F(HttpClientOfSeveral, RequestThatMayHaveBeenTakenIsNotSentToAnother) {
    b_leads = true;
    // Accepts connections, and never answers.
    const int silent = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const FileDescriptor listening(silent);
    const test::TempDirectory directory;
    const std::string path = directory / "silent.sock";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    ASSERT_EQ(::bind(silent, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(silent, 8), 0);
    HttpClient with_silent(path + "," + b.socket);
    const auto answer = with_silent.request("POST", "/", "body", {.timeout_ms = 50});
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::timeout);
    EXPECT_EQ(requests, 0);
    EXPECT_EQ(ask(with_silent), "b") << "the next request begins with the next server";
}

TEST_F(HttpClientOfSeveral, WrongEndpointOfListIsAnError) {
    EXPECT_TRUE(check_http_endpoints("unix:/a.sock, https://b:7600"));
    EXPECT_FALSE(check_http_endpoints("/a.sock,"));
    EXPECT_FALSE(check_http_endpoints("/a.sock,ftp://b:1"));
}

}  // namespace
}  // namespace larder
