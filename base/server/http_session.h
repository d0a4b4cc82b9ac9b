#pragma once

// One connection of an HttpServer, in a loop: reads a request, asks whether to admit it, passes it to the server's
// handler and writes the answer. Lives as long as one of its operations is pending or it waits for the handler. This
// header includes Beast, so only base/server/http_*.cc may include it.

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/serializer.hpp>
#include <boost/beast/http/string_body.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/server/http.h"
#include "base/server/http_peers.h"
#include "base/server/http_transport.h"

namespace larder {

class HttpSession;

// State that the server shares with its sessions; it may outlive the server. `mutex` guards `context` alone: a
// `respond` called on another thread posts to the context only while the server is there.
struct HttpServerCore {
    HttpServerCore(HttpHandler http_handler, HttpServerOptions server_options, boost::asio::io_context& io_context);

    HttpHandler handler;
    HttpServerOptions options;
    HttpPeers peers;
    SteadyClock clock;
    std::set<HttpSession*> sessions;
    std::set<std::shared_ptr<HttpSession>> waiting;  // for the handler's answer: only this set keeps them alive
    bool stopping = false;
    std::mutex mutex;
    boost::asio::io_context* context = nullptr;
};

// The other end of a new connection.
struct HttpSessionPeer {
    std::optional<PeerCredentials> credentials;
    std::string address;  // TCP
    // Returns the peer's key in HttpPeers: "user 1000" or the IP address.
    std::string limits_key() const;
};

class HttpSession : public std::enable_shared_from_this<HttpSession> {
public:
    using Protocol = HttpTransport::Protocol;

    // The caller has already counted the peer's connection in HttpPeers; the destructor uncounts it. The session counts
    // itself in `listener_connections` while it lives.
    HttpSession(std::shared_ptr<HttpServerCore> core, Protocol::socket socket, std::shared_ptr<TlsContext> tls,
                HttpSessionPeer peer, std::shared_ptr<std::size_t> listener_connections);
    ~HttpSession();

    void start();
    // Closes now if the session waits for a request, else after the current answer.
    void stop();
    // Writes the handler's answer.
    void answer(HttpResponse response);

private:
    using RequestParser = boost::beast::http::request_parser<boost::beast::http::string_body>;
    using HeaderSerializer = boost::beast::http::response_serializer<boost::beast::http::empty_body>;

    void read(std::int64_t timeout_ms);
    void admit();
    void read_body();
    void refuse(const boost::system::error_code& failure);
    void refuse(HttpResponse response);
    void handle();
    void write(HttpResponse response);
    void finish_write();
    void drain();
    void close_cleanly();
    void close();

    // In http_session_stream.cc: streamed answers, and clients that go away.
    void watch();
    void client_gone();
    void start_stream(HttpResponse response);
    void write_piece();
    void write_last();
    void close_stream();

    std::shared_ptr<HttpServerCore> core_;
    HttpTransport transport_;
    boost::beast::flat_buffer buffer_;
    std::optional<RequestParser> parser_;
    HttpRequest request_;
    boost::beast::http::response<boost::beast::http::string_body> response_;
    HttpSessionPeer peer_;
    std::shared_ptr<std::size_t> listener_connections_;
    bool answering_ = false;
    bool handler_has_request_ = false;
    bool head_only_ = false;
    bool keep_alive_ = false;
    bool refused_ = false;
    std::size_t drained_bytes_ = 0;

    bool watching_ = false;
    std::function<void()> when_gone_;
    std::shared_ptr<HttpStream> stream_;
    boost::beast::http::response<boost::beast::http::empty_body> stream_header_;
    std::optional<HeaderSerializer> stream_serializer_;
    std::string piece_;
    bool chunked_ = false;
    bool writing_ = false;
};

}  // namespace larder
