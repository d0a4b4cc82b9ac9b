#pragma once

// One connection of an HttpServer: reads a request, hands it to the server's handler, writes the answer, and again.
// Lives as long as an operation of it is pending or it waits for the handler. Beast is included here: only
// base/server/http_*.cc includes this.

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "base/server/http.h"

namespace larder {

class HttpSession;

// What sessions share with their server, and outlive it by. `mutex` guards `context` alone: a `respond` called on
// another thread posts to the context only while the server is there.
struct HttpServerCore {
    HttpHandler handler;
    HttpServerOptions options;
    std::set<HttpSession*> sessions;
    std::set<std::shared_ptr<HttpSession>> waiting;  // for the handler's answer: only this keeps them alive
    bool stopping = false;
    std::mutex mutex;
    boost::asio::io_context* context = nullptr;
};

class HttpSession : public std::enable_shared_from_this<HttpSession> {
public:
    using Protocol = boost::asio::generic::stream_protocol;

    HttpSession(std::shared_ptr<HttpServerCore> core, Protocol::socket socket, std::optional<PeerCredentials> peer);
    ~HttpSession();

    void start() { read(core_->options.request_timeout_ms); }
    // Now if it waits for a request, else after the answer in hand.
    void stop();
    void answer(HttpResponse response);

private:
    void read(std::int64_t timeout_ms);
    void read_body();
    void refuse(const boost::system::error_code& failure);
    void handle();
    void finish_write();
    void drain();
    void close();

    std::shared_ptr<HttpServerCore> core_;
    boost::beast::basic_stream<Protocol> stream_;
    boost::beast::flat_buffer buffer_;
    std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
    boost::beast::http::response<boost::beast::http::string_body> response_;
    std::optional<PeerCredentials> peer_;
    bool answering_ = false;
    bool head_only_ = false;
    bool keep_alive_ = false;
    bool refused_ = false;
    std::size_t drained_bytes_ = 0;
};

}  // namespace larder
