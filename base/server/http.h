#pragma once

// A small HTTP/1.1 server for admin APIs and metrics: few connections, small bodies, every limit fixed. It listens on
// Unix sockets (where it knows the user) and on TCP, with TLS if given a context. It runs on the caller's io_context:
// handlers are called on that context's thread, one at a time, and must not block. A slow handler keeps `respond` and
// calls it later, from any thread; a `respond` dropped without a call answers 500. Answers may continue as streams
// (base/server/http_stream.h). Boost stays out of this header. The client is in base/server/http_client.h.

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

// Answers one request. May be called once, from any thread, even after the client or the server has gone.
using HttpRespond = std::function<void(HttpResponse)>;
using HttpHandler = std::function<void(const HttpRequest& request, HttpRespond respond)>;
// Called with each request before its body is read. An answer refuses the request. May fill in `authenticated_as`.
using HttpAdmit = std::function<std::optional<HttpResponse>(HttpRequest& request)>;

struct HttpServerOptions {
    std::size_t header_bytes_max = 16u << 10;
    std::size_t body_bytes_max = 1u << 20;
    std::size_t connections_max = 256;         // of each listener; further ones are closed at once
    std::int64_t request_timeout_ms = 10'000;  // for a request to arrive, and for an answer to be received
    std::int64_t idle_timeout_ms = 60'000;     // between requests of one connection
    // Limits per peer: an IP address, or a user on a Unix socket. 0: no limit. A request over the limit is answered 429
    // with the seconds to wait in Retry-After; a connection over the limit is closed at once.
    std::size_t connections_per_peer_max = 0;
    double requests_per_second_per_peer = 0;
    double request_burst_per_peer = 0;  // requests a peer may send at once after a pause
    HttpAdmit admit;
};

class HttpServer {
public:
    // `context` must outlive the server.
    HttpServer(boost::asio::io_context& context, HttpHandler handler, HttpServerOptions options = {});
    ~HttpServer();

    // Listens on a Unix socket. Takes over the path of a server that has gone; a live server there is an error.
    Result<void> listen_unix(const std::string& path, unsigned mode);
    // Listens on "127.0.0.1:9464" and returns the port; port 0 takes a free one. With a TLS context, only TLS is
    // spoken.
    Result<std::uint16_t> listen_tcp(std::string_view address, std::shared_ptr<TlsContext> tls = nullptr);
    // Replaces the TLS context of every TLS listener for new connections, for example with a renewed certificate.
    void renew_tls(const std::shared_ptr<TlsContext>& tls);

    // Closes listeners (and unlinks their paths) and idle connections at once, and other connections after their
    // answers. Streams end, and requests whose handlers asked for on_gone are answered 503. Call it on the context's
    // thread, or when the context does not run.
    void stop();

    std::size_t connections() const;

private:
    struct State;
    std::shared_ptr<State> state_;
};

}  // namespace larder
