#pragma once

// The byte stream of one HTTP connection of a server: a socket with a timeout, with TLS if there is a context. Beast
// reads and writes through it in both cases. Only base/server/http_*.cc includes this.

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/basic_stream.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/server/tls_context.h"

namespace larder {

class HttpTransport {
public:
    using Protocol = boost::asio::generic::stream_protocol;
    using Stream = boost::beast::basic_stream<Protocol>;
    using Tls = boost::asio::ssl::stream<Stream&>;
    using executor_type = Stream::executor_type;

    HttpTransport(Protocol::socket socket, std::shared_ptr<TlsContext> tls)
        : stream_(std::move(socket)), context_(std::move(tls)) {
        if (context_) tls_.emplace(stream_, context_->context);
    }

    executor_type get_executor() { return stream_.get_executor(); }
    Stream& stream() { return stream_; }
    Tls* tls() { return tls_ ? &*tls_ : nullptr; }

    // Sets the time limit of operations started from now on; 0 or less: no limit.
    void expires_after_ms(std::int64_t timeout_ms) {
        if (timeout_ms <= 0) return stream_.expires_never();
        stream_.expires_after(std::chrono::milliseconds(timeout_ms));
    }

    template <typename Buffers, typename Handler>
    void async_read_some(const Buffers& buffers, Handler&& handler) {
        if (tls_) {
            tls_->async_read_some(buffers, std::forward<Handler>(handler));
        } else {
            stream_.async_read_some(buffers, std::forward<Handler>(handler));
        }
    }
    template <typename Buffers, typename Handler>
    void async_write_some(const Buffers& buffers, Handler&& handler) {
        if (tls_) {
            tls_->async_write_some(buffers, std::forward<Handler>(handler));
        } else {
            stream_.async_write_some(buffers, std::forward<Handler>(handler));
        }
    }

    void shutdown(boost::asio::socket_base::shutdown_type what) {
        boost::system::error_code ignored;
        stream_.socket().shutdown(what, ignored);
    }
    void close() {
        boost::system::error_code ignored;
        shutdown(boost::asio::socket_base::shutdown_both);
        stream_.socket().close(ignored);
    }

private:
    Stream stream_;
    std::shared_ptr<TlsContext> context_;
    std::optional<Tls> tls_;
};

}  // namespace larder
