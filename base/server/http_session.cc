#include "base/server/http_session.h"

#include <boost/asio/post.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>

#include <atomic>
#include <exception>

#include "base/server/http_target.h"

namespace larder {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::size_t kDrainedBytesMax = 16u << 20;
constexpr std::size_t kReadBytesMax = 16u << 10;  // at once
constexpr std::int64_t kTlsShutdownMs = 2000;

// The right to answer one request, once. If it is destroyed unused, it answers with an error.
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

bool is_bearer(std::string_view scheme) {
    return boost::beast::iequals(scheme, "Bearer ");
}

// Returns the bearer token, or nothing if there are two headers: a proxy in front of us might have read the other one.
template <typename Fields>
std::string bearer_token_of(const Fields& fields) {
    constexpr std::size_t scheme_bytes = 7;
    if (fields.count(http::field::authorization) != 1) return {};
    const std::string_view value = fields[http::field::authorization];
    if (!is_bearer(value.substr(0, scheme_bytes))) return {};
    return std::string(value.substr(scheme_bytes));
}

// Browsers send Sec-Fetch-Site only to HTTPS and localhost, and Origin not with every request. Scripts of a page can
// change Accept-Language, but cannot remove it.
template <typename Fields>
bool is_from_browser(const Fields& fields) {
    return fields.count("Sec-Fetch-Site") > 0 || fields.count(http::field::origin) > 0 ||
           fields.count(http::field::accept_language) > 0;
}

}  // namespace

HttpServerCore::HttpServerCore(HttpHandler http_handler, HttpServerOptions server_options,
                               boost::asio::io_context& io_context)
    : handler(std::move(http_handler)),
      options(std::move(server_options)),
      peers({.connections_max = options.connections_per_peer_max,
             .requests_per_second_max = options.requests_per_second_per_peer,
             .request_burst = options.request_burst_per_peer}),
      context(&io_context) {}

std::string HttpSessionPeer::limits_key() const {
    return credentials ? "user " + std::to_string(credentials->uid) : address;
}

HttpSession::HttpSession(std::shared_ptr<HttpServerCore> core, Protocol::socket socket, std::shared_ptr<TlsContext> tls,
                         HttpSessionPeer peer, std::shared_ptr<std::size_t> listener_connections)
    : core_(std::move(core)),
      transport_(std::move(socket), std::move(tls)),
      buffer_(core_->options.header_bytes_max + core_->options.body_bytes_max),
      peer_(std::move(peer)),
      listener_connections_(std::move(listener_connections)) {
    core_->sessions.insert(this);
    ++*listener_connections_;
}

HttpSession::~HttpSession() {
    if (stream_) stream_->close();
    core_->sessions.erase(this);
    --*listener_connections_;
    core_->peers.close(peer_.limits_key());
}

void HttpSession::start() {
    if (transport_.tls() == nullptr) return read(core_->options.request_timeout_ms);
    transport_.expires_after_ms(core_->options.request_timeout_ms);
    transport_.tls()->async_handshake(boost::asio::ssl::stream_base::server,
                                      [self = shared_from_this()](error_code failure) {
                                          // OpenSSL has told the client why.
                                          failure ? self->close() : self->read(self->core_->options.request_timeout_ms);
                                      });
}

void HttpSession::stop() {
    keep_alive_ = false;
    if (stream_) return close_stream();
    if (!answering_) return close();
    if (const auto notify_gone = std::exchange(when_gone_, nullptr)) {
        answer(http_error(503, name(ErrorCode::unavailable), "the server is stopping"));
        notify_gone();
    }
}

void HttpSession::read(std::int64_t timeout_ms) {
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(core_->options.header_bytes_max));
    parser_->body_limit(core_->options.body_bytes_max);
    transport_.expires_after_ms(timeout_ms);
    http::async_read_header(transport_, buffer_, *parser_,
                            [self = shared_from_this()](error_code failure, std::size_t) {
                                failure ? self->refuse(failure) : self->admit();
                            });
}

// Runs with the header alone, so that no body of a refused client is held in memory.
void HttpSession::admit() {
    if (core_->stopping) return close();  // it was read before the server stopped, and this call came after
    const auto& message = parser_->get();
    keep_alive_ = message.keep_alive() && !core_->stopping;
    head_only_ = message.method() == http::verb::head;
    request_ = {};
    request_.method = head_only_ ? "GET" : std::string(message.method_string());
    request_.peer = peer_.credentials;
    request_.peer_address = peer_.address;
    request_.bearer_token = bearer_token_of(message);
    request_.host = message[http::field::host];
    request_.origin = message[http::field::origin];
    request_.fetch_site = message["Sec-Fetch-Site"];
    request_.is_from_browser = is_from_browser(message);
    if (auto* tls = transport_.tls()) {
        request_.certificate_name = checked_common_name(tls->native_handle());
        request_.host_is_certified = is_certified_host(tls->native_handle(), request_.host);
    }
    if (const auto wait_s = core_->peers.take_request(peer_.limits_key(), core_->clock.now_ns()); wait_s > 0) {
        HttpResponse later = http_error(429, "too_many_requests",
                                        "too many requests: wait " + std::to_string(wait_s) + " s, and ask less often");
        later.headers.emplace_back("Retry-After", std::to_string(wait_s));
        return refuse(std::move(later));
    }
    if (auto parsed = parse_http_target(message.target(), request_); !parsed) {
        return refuse(http_error(parsed.error()));
    }
    if (core_->options.admit) {
        if (auto refusal = core_->options.admit(request_)) return refuse(std::move(*refusal));
    }
    read_body();
}

void HttpSession::read_body() {
    transport_.expires_after_ms(core_->options.request_timeout_ms);
    // Beast reads as much as the buffer has room for, and makes little room by itself.
    const auto left_bytes = static_cast<std::size_t>(parser_->content_length_remaining().value_or(0));
    buffer_.reserve(std::min(buffer_.size() + std::min(left_bytes, kReadBytesMax), buffer_.max_size()));
    http::async_read(transport_, buffer_, *parser_, [self = shared_from_this()](error_code failure, std::size_t) {
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
        return write(http_error(413, "invalid_argument",
                                "the body is larger than " + std::to_string(options.body_bytes_max) + " bytes"));
    }
    if (failure == http::error::header_limit || failure == http::error::buffer_overflow) {
        return write(http_error(431, "invalid_argument",
                                "the header is larger than " + std::to_string(options.header_bytes_max) + " bytes"));
    }
    write(http_error(400, "protocol", "not an HTTP request: " + failure.message()));
}

void HttpSession::refuse(HttpResponse response) {
    answering_ = true;
    // A body that nobody reads ends the connection.
    const bool complete = parser_->is_done();
    refused_ = !complete;
    keep_alive_ = keep_alive_ && complete;
    write(std::move(response));
}

void HttpSession::handle() {
    if (core_->stopping) return close();
    answering_ = true;
    handler_has_request_ = true;
    transport_.expires_after_ms(0);
    request_.body = std::move(parser_->get().body());
    request_.on_gone = [session = weak_from_this()](std::function<void()> gone) {
        const auto alive = session.lock();
        if (!alive || !alive->handler_has_request_) return;
        alive->when_gone_ = std::move(gone);
        if (!alive->watching_) alive->watch();
    };
    core_->waiting.insert(shared_from_this());
    auto answer_once = std::make_shared<Answer>(core_, weak_from_this());
    try {
        core_->handler(request_, [answer_once](HttpResponse response) { answer_once->give(std::move(response)); });
    } catch (const std::exception& error) {
        answer_once->give(http_error(500, "internal", error.what()));
    }
    request_ = {};
}

void HttpSession::answer(HttpResponse response) {
    // The session was stopped, or its client has gone, while the handler worked.
    if (!handler_has_request_) return;
    const auto self = shared_from_this();
    handler_has_request_ = false;
    when_gone_ = nullptr;
    core_->waiting.erase(self);
    // The watch cannot be cancelled and may have read into the next request.
    keep_alive_ = keep_alive_ && !watching_;
    if (response.stream) return start_stream(std::move(response));
    write(std::move(response));
}

void HttpSession::write(HttpResponse response) {
    response_ = {};
    response_.version(11);
    response_.result(response.status);
    response_.set(http::field::content_type, response.content_type);
    if (response.content_type == "application/json") {
        // Answers may be for this caller only, and a browser must not take one for a script.
        response_.set(http::field::cache_control, "no-store");
        response_.set("X-Content-Type-Options", "nosniff");
    }
    for (const auto& [key, value] : response.headers) response_.set(key, value);
    keep_alive_ = keep_alive_ && !core_->stopping;
    response_.keep_alive(keep_alive_);
    response_.body() = std::move(response.body);
    response_.prepare_payload();
    // Content-Length stays that of the GET's body.
    if (head_only_) response_.body().clear();
    transport_.expires_after_ms(core_->options.request_timeout_ms);
    http::async_write(transport_, response_, [self = shared_from_this()](error_code failure, std::size_t) {
        failure ? self->close() : self->finish_write();
    });
}

void HttpSession::finish_write() {
    answering_ = false;
    if (keep_alive_ && !core_->stopping) return read(core_->options.idle_timeout_ms);
    if (!refused_) return close_cleanly();
    transport_.shutdown(Protocol::socket::shutdown_send);
    drain();
}

// Reads the rest of a refused request. Closing with it unread would reset the connection before the client sees the
// answer.
void HttpSession::drain() {
    buffer_.clear();
    const auto into = buffer_.prepare(std::min(kReadBytesMax, buffer_.max_size()));
    transport_.stream().async_read_some(into, [self = shared_from_this()](error_code failure, std::size_t got) {
        self->drained_bytes_ += got;
        failure || self->drained_bytes_ > kDrainedBytesMax ? self->close() : self->drain();
    });
}

// TLS clients that were told no length treat a plain close as a truncated answer.
void HttpSession::close_cleanly() {
    if (transport_.tls() == nullptr || watching_) return close();
    transport_.expires_after_ms(kTlsShutdownMs);
    transport_.tls()->async_shutdown([self = shared_from_this()](error_code) { self->close(); });
}

void HttpSession::close() {
    transport_.close();
}

}  // namespace larder
