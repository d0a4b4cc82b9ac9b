#pragma once

// A small HTTP/1.1 server and a blocking client, for admin APIs and metrics: few connections, small bodies, every
// limit fixed. The server listens on Unix sockets (where it knows who asks) and on TCP, and runs on the
// caller's io_context: handlers are called on that context's thread, one at a time, and must not block. A handler that
// needs time keeps `respond` and calls it later, from any thread; a `respond` that is dropped uncalled answers 500.
// Boost stays out of this header.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace boost::asio {
class io_context;
}

namespace larder {

// Who is at the other end of a Unix socket, as the kernel says (SO_PEERCRED).
struct PeerCredentials {
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
    std::int32_t pid = 0;
};

struct HttpRequest {
    std::string method;                        // "GET"
    std::vector<std::string> path;             // percent-decoded: "/v1/datasets/a%20b" is {"v1", "datasets", "a b"}
    std::map<std::string, std::string> query;  // percent-decoded
    std::string body;
    std::optional<PeerCredentials> peer;  // none over TCP: answer only what anyone may read
};

struct HttpResponse {
    unsigned status = 200;
    std::string content_type = "application/json";
    std::string body;
    std::vector<std::pair<std::string, std::string>> headers;
};

// {"error": {"code": "not_found", "message": "..."}} with the status that fits the code.
HttpResponse http_error(const Error& error);
HttpResponse http_error(unsigned status, std::string_view code, std::string_view message);
unsigned http_status_of(ErrorCode code);

// The Error inside an answer made by http_error; an Error of the closest code where the body is something else.
Error error_of_response(const HttpResponse& response);

// May be called once, from any thread, also after the client or the server has gone.
using HttpRespond = std::function<void(HttpResponse)>;
using HttpHandler = std::function<void(const HttpRequest& request, HttpRespond respond)>;

struct HttpServerOptions {
    std::size_t header_bytes_max = 16u << 10;
    std::size_t body_bytes_max = 1u << 20;
    std::size_t connections_max = 256;         // one more is closed at once
    std::int64_t request_timeout_ms = 10'000;  // for one request to arrive, and for one answer to be taken
    std::int64_t idle_timeout_ms = 60'000;     // between requests of one connection
};

class HttpServer {
public:
    // `context` must outlive the server.
    HttpServer(boost::asio::io_context& context, HttpHandler handler, HttpServerOptions options = {});
    ~HttpServer();

    // Takes over the path of a server that is gone; a live one is an error.
    Result<void> listen_unix(const std::string& path, unsigned mode);
    // "127.0.0.1:9464"; port 0 takes a free one. Gives the port.
    Result<std::uint16_t> listen_tcp(std::string_view address);

    // Closes listeners (and unlinks their paths), idle connections at once and the others after their answer. On the
    // context's thread, or when it does not run.
    void stop();

    std::size_t connections() const;

private:
    struct State;
    std::shared_ptr<State> state_;
};

// One request, one answer, over a Unix socket (`address` has a slash) or TCP ("127.0.0.1:9464"). An answer of any
// status is a value; `unavailable` means nobody listens there.
Result<HttpResponse> http_request(const std::string& address, std::string_view method, std::string_view target,
                                  std::string_view body = {}, std::int64_t timeout_ms = 30'000);

// For building targets: all but unreserved characters become %XX.
std::string percent_encode(std::string_view text);

}  // namespace larder
