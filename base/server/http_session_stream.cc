// The parts of HttpSession for answers that take long: noticing that the client has gone, and streams.

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/write.hpp>

#include "base/server/http_session.h"

namespace larder {

namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::size_t kWatchedBytes = 512;

// Keeps reading to notice the end of the connection. A request that arrives meanwhile is never served, because the
// connection ends with this answer. A client that sends more than the buffer holds is no longer watched.
void HttpSession::watch() {
    if (buffer_.max_size() - buffer_.size() < kWatchedBytes) return;
    watching_ = true;
    transport_.async_read_some(buffer_.prepare(kWatchedBytes),
                               [self = shared_from_this()](error_code failure, std::size_t got) {
                                   if (failure) return self->client_gone();
                                   self->buffer_.commit(got);
                                   self->watch();
                               });
}

void HttpSession::client_gone() {
    const auto self = shared_from_this();
    if (stream_) return close_stream();
    if (handler_has_request_) {
        handler_has_request_ = false;
        core_->waiting.erase(self);
        close();
    }
    if (const auto notify_gone = std::exchange(when_gone_, nullptr)) notify_gone();
}

void HttpSession::start_stream(HttpResponse response) {
    stream_ = std::move(response.stream);
    keep_alive_ = false;
    chunked_ = parser_->get().version() >= 11;
    stream_header_ = {};
    stream_header_.version(11);
    stream_header_.result(response.status);
    stream_header_.set(http::field::content_type, response.content_type);
    stream_header_.set(http::field::cache_control, "no-store");
    for (const auto& [key, value] : response.headers) stream_header_.set(key, value);
    stream_header_.keep_alive(false);
    if (chunked_) stream_header_.chunked(true);
    if (core_->stopping || !stream_->is_open()) stream_->end();
    stream_->queued_.insert(0, response.body);
    stream_->backlog_bytes_ += response.body.size();
    stream_->wake_ = [session = weak_from_this(), context = core_->context] {
        // Posted, not called from within push: a callback may change the list that the caller iterates over.
        boost::asio::post(*context, [session] {
            if (const auto alive = session.lock()) alive->write_piece();
        });
    };
    if (!watching_) watch();
    writing_ = true;
    stream_serializer_.emplace(stream_header_);
    transport_.expires_after_ms(core_->options.request_timeout_ms);
    http::async_write_header(transport_, *stream_serializer_,
                             [self = shared_from_this()](error_code failure, std::size_t) {
                                 self->writing_ = false;
                                 if (failure || self->head_only_) return self->close_stream();
                                 self->write_piece();
                             });
}

void HttpSession::write_piece() {
    if (!stream_ || writing_ || stream_->state_ == HttpStream::State::closed) {
        // Closes at once: a write may hang because the client reads nothing, and must not delay dropping it.
        if (stream_ && stream_->state_ == HttpStream::State::overrun) close_stream();
        return;
    }
    if (stream_->state_ == HttpStream::State::overrun) return close_stream();
    piece_ = stream_->take();
    if (piece_.empty()) {
        if (stream_->state_ == HttpStream::State::ending) write_last();
        return;
    }
    writing_ = true;
    transport_.expires_after_ms(core_->options.request_timeout_ms);
    const auto done = [self = shared_from_this()](error_code failure, std::size_t) {
        self->writing_ = false;
        if (failure) return self->close_stream();
        self->stream_->sent(self->piece_.size());
        self->write_piece();
    };
    const boost::asio::const_buffer piece(piece_.data(), piece_.size());
    if (chunked_) {
        boost::asio::async_write(transport_, http::make_chunk(piece), done);
    } else {
        boost::asio::async_write(transport_, piece, done);
    }
}

void HttpSession::write_last() {
    if (!chunked_) return close_stream();
    writing_ = true;
    transport_.expires_after_ms(core_->options.request_timeout_ms);
    boost::asio::async_write(transport_, http::make_chunk_last(),
                             [self = shared_from_this()](error_code, std::size_t) { self->close_stream(); });
}

void HttpSession::close_stream() {
    close();
    stream_->close();
}

}  // namespace larder
