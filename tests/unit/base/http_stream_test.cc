// Long answers: streams that either side may end, and handlers that learn that their client has gone.

#include "base/server/http_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <memory>
#include <string>

#include "base/file.h"
#include "base/server/http.h"
#include "tests/support/http_service.h"

namespace larder {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A connection that sends `text` and can be closed at any moment.
class Client {
public:
    Client(const std::string& path, std::string_view text) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::memcpy(address.sun_path, path.data(), path.size());
        EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
        EXPECT_EQ(::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
    }
    // Reads until the text contains `end` or the server closes. Returns the text.
    std::string read_until(std::string_view end) {
        std::string got;
        char letter = 0;
        while (!got.contains(end) && ::read(fd_.get(), &letter, 1) == 1) got += letter;
        return got;
    }
    void leave() { fd_.reset(); }

private:
    FileDescriptor fd_;
};

// A request that the handler has not answered. The test answers it.
struct WaitingRequest {
    std::promise<HttpRespond> respond;
    std::promise<void> gone;
    std::promise<void> closed;
};

class HttpStreamTest : public ::testing::Test {
protected:
    std::shared_ptr<WaitingRequest> waiting = std::make_shared<WaitingRequest>();
    std::shared_ptr<HttpStream> stream = std::make_shared<HttpStream>(4u << 20);
    std::future<void> closed = waiting->closed.get_future();
    std::future<void> gone = waiting->gone.get_future();

    void handle(const HttpRequest& request, HttpRespond respond) {
        if (request.path == std::vector<std::string>{"wait"}) {
            request.on_gone([to = waiting] { to->gone.set_value(); });
            waiting->respond.set_value(respond);
            return;
        }
        if (request.path == std::vector<std::string>{"events"}) {
            stream->on_close([to = waiting] { to->closed.set_value(); });
            respond({.content_type = "text/event-stream", .body = ": hello\n\n", .stream = stream});
            return;
        }
        respond({.content_type = "text/plain", .body = "plain"});
    }
    test::HttpService service{
        [this](const HttpRequest& request, HttpRespond respond) { handle(request, std::move(respond)); }};

    bool push(std::string piece) {
        return service.on_thread([this, piece = std::move(piece)] { return stream->push(piece); });
    }
};

TEST_F(HttpStreamTest, HeadersComeAtOnceAndPiecesWhenPushed) {
    Client client(service.socket, "GET /events HTTP/1.1\r\n\r\n");
    const std::string header = client.read_until("\r\n\r\n");
    EXPECT_THAT(header, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(header, HasSubstr("Content-Type: text/event-stream\r\n"));
    EXPECT_THAT(header, HasSubstr("Transfer-Encoding: chunked\r\n"));
    EXPECT_THAT(client.read_until(": hello\n\n\r\n"), EndsWith(": hello\n\n\r\n"));
    EXPECT_TRUE(push("data: 1\n\n"));
    EXPECT_EQ(client.read_until("1\n\n\r\n"), "9\r\ndata: 1\n\n\r\n");
    EXPECT_TRUE(push("data: 2\n\n"));
    EXPECT_EQ(client.read_until("2\n\n\r\n"), "9\r\ndata: 2\n\n\r\n");
    service.on_thread([this] { stream->end(); });
    EXPECT_EQ(client.read_until("\r\n\r\n\r\n"), "0\r\n\r\n") << "the last chunk, then the connection closes";
    closed.get();
    EXPECT_FALSE(push("late"));
}

TEST_F(HttpStreamTest, Http10ClientGetsNoChunks) {
    Client client(service.socket, "GET /events HTTP/1.0\r\n\r\n");
    EXPECT_THAT(client.read_until("\r\n\r\n"), ::testing::Not(HasSubstr("chunked")));
    EXPECT_EQ(client.read_until("\n\n"), ": hello\n\n");
    service.on_thread([this] { stream->end(); });
    EXPECT_EQ(client.read_until("never"), "");
}

TEST_F(HttpStreamTest, StreamClosesWhenItsClientLeaves) {
    Client client(service.socket, "GET /events HTTP/1.1\r\n\r\n");
    client.read_until(": hello");
    client.leave();
    closed.get();
    EXPECT_FALSE(push("data: nobody\n\n"));
    EXPECT_EQ(http_request(service.socket, "GET", "/")->body, "plain") << "and the server goes on";
}

TEST_F(HttpStreamTest, SlowClientIsDroppedAndOthersAreServed) {
    Client slow(service.socket, "GET /events HTTP/1.1\r\n\r\n");
    slow.read_until(": hello");
    const std::string piece(64u << 10, 'x');
    int pushed = 0;
    // The kernel buffers some, the backlog the rest; the client reads nothing.
    while (push(piece)) ASSERT_LT(++pushed, 1000);
    EXPECT_GE(pushed, (4u << 20) / piece.size() - 1);
    closed.get();
    EXPECT_EQ(http_request(service.socket, "GET", "/")->body, "plain");
}

TEST_F(HttpStreamTest, StoppingTheServerCutsTheStream) {
    Client client(service.socket, "GET /events HTTP/1.1\r\n\r\n");
    client.read_until(": hello");
    service.on_thread([this] { service.server().stop(); });
    closed.get();
    EXPECT_THAT(client.read_until("never"), ::testing::Not(HasSubstr("0\r\n\r\n"))) << "cut, not ended";
}

TEST_F(HttpStreamTest, HeadOfAStreamEndsAfterTheHeaders) {
    Client client(service.socket, "HEAD /events HTTP/1.1\r\n\r\n");
    EXPECT_THAT(client.read_until("never"), HasSubstr("text/event-stream"));
    closed.get();
}

TEST_F(HttpStreamTest, ClientFollowsAStreamUntilEitherSideEndsIt) {
    std::string all;
    const auto followed = std::async(std::launch::async, [&] {
                              return http_get_stream(service.socket, "/events", [&](std::string_view part) {
                                  all += part;
                                  if (all.ends_with("hello\n\n"))
                                      service.on_thread([this] { stream->push("data: 1\n\n"); });
                                  if (all.ends_with("1\n\n")) service.on_thread([this] { stream->end(); });
                                  return true;
                              });
                          }).get();
    EXPECT_TRUE(followed) << followed.error().message;
    EXPECT_EQ(all, ": hello\n\ndata: 1\n\n");
    service.on_thread([this] {
        stream = std::make_shared<HttpStream>();
        waiting = std::make_shared<WaitingRequest>();
    });
    closed = waiting->closed.get_future();
    EXPECT_TRUE(http_get_stream(service.socket, "/events", [](std::string_view) { return false; }));
    closed.get();
}

TEST_F(HttpStreamTest, CutStreamIsAnErrorForTheClient) {
    const auto cut = http_get_stream(service.socket, "/events", [&](std::string_view) {
        service.on_thread([this] { service.server().stop(); });
        return true;
    });
    ASSERT_FALSE(cut);
    EXPECT_EQ(cut.error().code, ErrorCode::unavailable) << cut.error().message;
}

TEST_F(HttpStreamTest, HandlerMayAnswerLate) {
    Client client(service.socket, "GET /wait HTTP/1.1\r\n\r\n");
    const HttpRespond respond = waiting->respond.get_future().get();
    respond({.content_type = "text/plain", .body = "late"});
    EXPECT_THAT(client.read_until("never"), EndsWith("late"));
    EXPECT_EQ(gone.wait_for(std::chrono::seconds(0)), std::future_status::timeout) << "it was answered";
}

TEST_F(HttpStreamTest, WaitingHandlerLearnsThatItsClientHasGone) {
    Client client(service.socket, "GET /wait HTTP/1.1\r\n\r\n");
    const HttpRespond respond = waiting->respond.get_future().get();
    client.leave();
    gone.get();
    respond({.content_type = "text/plain", .body = "to nobody"});
    EXPECT_EQ(service.on_thread([this] { return service.server().connections(); }), 0u);
}

TEST_F(HttpStreamTest, WaitingRequestGets503WhenTheServerStops) {
    Client client(service.socket, "GET /wait HTTP/1.1\r\n\r\n");
    const HttpRespond respond = waiting->respond.get_future().get();
    service.on_thread([this] { service.server().stop(); });
    gone.get();
    EXPECT_THAT(client.read_until("never"), StartsWith("HTTP/1.1 503 "));
    respond({.content_type = "text/plain", .body = "too late"});
}

TEST_F(HttpStreamTest, LateAnswerClosesAPipelinedConnection) {
    Client client(service.socket, "GET /wait HTTP/1.1\r\n\r\nGET /next HTTP/1.1\r\n\r\n");
    const HttpRespond respond = waiting->respond.get_future().get();
    respond({.content_type = "text/plain", .body = "late"});
    const std::string answer = client.read_until("never");
    EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
    EXPECT_THAT(answer, EndsWith("late"));
}

}  // namespace
}  // namespace larder
