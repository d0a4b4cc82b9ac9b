#pragma once

// A small HTTP/1.1 server for admin APIs and metrics: few connections, small bodies, every limit fixed. It listens on
// Unix sockets (where it knows who asks) and on TCP, with TLS where it is given a context for it, and runs on the
// caller's io_context: handlers are called on that context's thread, one at a time, and must not block. A handler that
// needs time keeps `respond` and calls it later, from any thread; a `respond` that is dropped uncalled answers 500.
// Answers may go on as streams (base/server/http_stream.h). Boost stays out of this header. The client is in
// base/server/http_client.h.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/server/http_client.h"
#include "base/server/http_message.h"
#include "base/server/http_stream.h"
#include "base/server/tls.h"

namespace boost::asio {
class io_context;
}

namespace larder {

// May be called once, from any thread, also after the client or the server has gone.
using HttpRespond = std::function<void(HttpResponse)>;
using HttpHandler = std::function<void(const HttpRequest& request, HttpRespond respond)>;
// Sees a request before its body is read: an answer refuses it. May fill in `authenticated_as`.
using HttpAdmit = std::function<std::optional<HttpResponse>(HttpRequest& request)>;

struct HttpServerOptions {
    std::size_t header_bytes_max = 16u << 10;
    std::size_t body_bytes_max = 1u << 20;
    std::size_t connections_max = 256;         // one more is closed at once
    std::int64_t request_timeout_ms = 10'000;  // for one request to arrive, and for one answer to be taken
    std::int64_t idle_timeout_ms = 60'000;     // between requests of one connection
    // Of one peer: an IP address, or a user on a Unix socket. 0: no limit. A request too many is answered 429 with the
    // seconds to wait in Retry-After, a connection too many is closed at once.
    std::size_t connections_per_peer_max = 0;
    double requests_per_second_per_peer = 0;
    double request_burst_per_peer = 0;  // what it may ask at once after a pause
    HttpAdmit admit;
};

class HttpServer {
public:
    // `context` must outlive the server.
    HttpServer(boost::asio::io_context& context, HttpHandler handler, HttpServerOptions options = {});
    ~HttpServer();

    // Takes over the path of a server that is gone; a live one is an error.
    Result<void> listen_unix(const std::string& path, unsigned mode);
    // "127.0.0.1:9464"; port 0 takes a free one. Gives the port. With a TLS context, nothing but TLS is spoken there.
    Result<std::uint16_t> listen_tcp(std::string_view address, std::shared_ptr<TlsContext> tls = nullptr);
    // For connections from now on, of every TLS listener: certificates run out and are replaced.
    void renew_tls(const std::shared_ptr<TlsContext>& tls);

    // Closes listeners (and unlinks their paths), idle connections at once and the others after their answer; streams
    // end, and requests whose handlers asked for on_gone are answered 503. On the context's thread, or when it does not
    // run.
    void stop();

    std::size_t connections() const;

private:
    struct State;
    std::shared_ptr<State> state_;
};

}  // namespace larder
