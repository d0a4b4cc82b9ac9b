#include "base/server/http_session.h"

#include <boost/asio/post.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>

#include <atomic>
#include <chrono>
#include <exception>

#include "base/server/http_target.h"

namespace larder {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::size_t kDrainedBytesMax = 16u << 20;

// The one right to answer a request. Destroyed unused, it answers that the handler forgot.
class Answer {
public:
    Answer(std::shared_ptr<HttpServerCore> core, std::weak_ptr<HttpSession> session)
        : core_(std::move(core)), session_(std::move(session)) {}
    ~Answer() { give(http_error(500, "internal", "the request was dropped without an answer")); }

    void give(HttpResponse response) {
        if (given_.exchange(true)) return;
        const std::lock_guard lock(core_->mutex);
        if (core_->context == nullptr) return;
        boost::asio::post(*core_->context, [session = session_, response = std::move(response)]() mutable {
            if (const auto alive = session.lock()) alive->answer(std::move(response));
        });
    }

private:
    std::shared_ptr<HttpServerCore> core_;
    std::weak_ptr<HttpSession> session_;  // may be locked on the context's thread only
    std::atomic<bool> given_ = false;
};

}  // namespace

HttpSession::HttpSession(std::shared_ptr<HttpServerCore> core, Protocol::socket socket,
                         std::optional<PeerCredentials> peer)
    : core_(std::move(core)),
      stream_(std::move(socket)),
      buffer_(core_->options.header_bytes_max + core_->options.body_bytes_max),
      peer_(peer) {
    core_->sessions.insert(this);
}

HttpSession::~HttpSession() {
    core_->sessions.erase(this);
}

void HttpSession::stop() {
    if (answering_) {
        keep_alive_ = false;
    } else {
        close();
    }
}

void HttpSession::read(std::int64_t timeout_ms) {
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(core_->options.header_bytes_max));
    parser_->body_limit(core_->options.body_bytes_max);
    stream_.expires_after(std::chrono::milliseconds(timeout_ms));
    http::async_read_header(stream_, buffer_, *parser_, [self = shared_from_this()](error_code failure, std::size_t) {
        failure ? self->refuse(failure) : self->read_body();
    });
}

void HttpSession::read_body() {
    stream_.expires_after(std::chrono::milliseconds(core_->options.request_timeout_ms));
    http::async_read(stream_, buffer_, *parser_, [self = shared_from_this()](error_code failure, std::size_t) {
        failure ? self->refuse(failure) : self->handle();
    });
}

void HttpSession::refuse(const error_code& failure) {
    if (failure.category() != make_error_code(http::error::bad_method).category() ||
        failure == http::error::end_of_stream || failure == http::error::partial_message) {
        return close();
    }
    refused_ = true;
    keep_alive_ = false;
    answering_ = true;
    const HttpServerOptions& options = core_->options;
    if (failure == http::error::body_limit) {
        return answer(http_error(413, "invalid_argument",
                                 "the body is larger than " + std::to_string(options.body_bytes_max) + " bytes"));
    }
    if (failure == http::error::header_limit || failure == http::error::buffer_overflow) {
        return answer(http_error(431, "invalid_argument",
                                 "the header is larger than " + std::to_string(options.header_bytes_max) + " bytes"));
    }
    answer(http_error(400, "protocol", "not an HTTP request: " + failure.message()));
}

void HttpSession::handle() {
    const auto& message = parser_->get();
    keep_alive_ = message.keep_alive() && !core_->stopping;
    head_only_ = message.method() == http::verb::head;
    answering_ = true;
    stream_.expires_never();

    HttpRequest request;
    request.method = head_only_ ? "GET" : std::string(message.method_string());
    request.peer = peer_;
    if (auto parsed = parse_http_target(message.target(), request); !parsed) {
        return answer(http_error(parsed.error()));
    }
    request.body = std::move(parser_->get().body());
    core_->waiting.insert(shared_from_this());
    auto right = std::make_shared<Answer>(core_, weak_from_this());
    try {
        core_->handler(request, [right](HttpResponse response) { right->give(std::move(response)); });
    } catch (const std::exception& error) {
        right->give(http_error(500, "internal", error.what()));
    }
}

void HttpSession::answer(HttpResponse response) {
    core_->waiting.erase(shared_from_this());
    response_ = {};
    response_.version(11);
    response_.result(response.status);
    response_.set(http::field::content_type, response.content_type);
    for (const auto& [key, value] : response.headers) response_.set(key, value);
    keep_alive_ = keep_alive_ && !core_->stopping;
    response_.keep_alive(keep_alive_);
    response_.body() = std::move(response.body);
    response_.prepare_payload();
    // The length stays that of the body a GET would have had.
    if (head_only_) response_.body().clear();
    stream_.expires_after(std::chrono::milliseconds(core_->options.request_timeout_ms));
    http::async_write(stream_, response_, [self = shared_from_this()](error_code failure, std::size_t) {
        failure ? self->close() : self->finish_write();
    });
}

void HttpSession::finish_write() {
    answering_ = false;
    if (keep_alive_ && !core_->stopping) return read(core_->options.idle_timeout_ms);
    if (!refused_) return close();
    error_code ignored;
    stream_.socket().shutdown(Protocol::socket::shutdown_send, ignored);
    drain();
}

// Closing with the refused request unread would reset the connection before the client has seen the answer.
void HttpSession::drain() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(16384), [self = shared_from_this()](error_code failure, std::size_t got) {
        self->drained_bytes_ += got;
        failure || self->drained_bytes_ > kDrainedBytesMax ? self->close() : self->drain();
    });
}

void HttpSession::close() {
    error_code ignored;
    stream_.socket().shutdown(Protocol::socket::shutdown_both, ignored);
    stream_.socket().close(ignored);
}

}  // namespace larder
