#include "base/server/http_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <exception>
#include <vector>

#include "base/file.h"
#include "base/server/http_target.h"
#include "base/server/http_transport.h"

namespace larder {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

using Endpoint = HttpTransport::Protocol::endpoint;

constexpr std::size_t kAnswerBytesMax = 256u << 20;

Result<std::vector<Endpoint>> addresses_of(const HttpEndpoint& endpoint, asio::io_context& context) {
    if (!endpoint.path.empty()) return std::vector{Endpoint(asio::local::stream_protocol::endpoint(endpoint.path))};
    error_code failure;
    if (const auto ip = asio::ip::make_address(endpoint.host, failure); !failure) {
        return std::vector{Endpoint(asio::ip::tcp::endpoint(ip, endpoint.port))};
    }
    asio::ip::tcp::resolver resolver(context);
    const auto found = resolver.resolve(endpoint.host, std::to_string(endpoint.port),
                                        asio::ip::tcp::resolver::numeric_service, failure);
    if (failure) return fail(ErrorCode::unavailable, "look up " + endpoint.host + ": " + failure.message());
    std::vector<Endpoint> addresses;
    for (const auto& entry : found) addresses.emplace_back(entry.endpoint());
    return addresses;
}

std::unexpected<Error> failed(const error_code& failure, const std::string& what, bool connecting) {
    if (failure == beast::error::timeout) return fail(ErrorCode::timeout, what + ": no answer in time");
    if (failure.category() == asio::error::get_ssl_category()) {
        const bool plain = ERR_GET_REASON(static_cast<unsigned long>(failure.value())) == SSL_R_WRONG_VERSION_NUMBER;
        return fail(ErrorCode::protocol, what + ": TLS: " + failure.message() +
                                             (plain ? "; plain HTTP is spoken there: write http://" : ""));
    }
    Error error = errno_error(failure.value(), what);
    if (failure.category() != boost::system::system_category()) {
        error = Error{ErrorCode::unavailable, what + ": " + failure.message(), 0};
    }
    // A failure to connect means nobody answers there; only permission_denied keeps its own code.
    if (connecting && error.code != ErrorCode::permission_denied) error.code = ErrorCode::unavailable;
    return std::unexpected(std::move(error));
}

// One connection; every operation on it blocks until it is done.
class Connection {
public:
    explicit Connection(std::shared_ptr<TlsContext> tls) : transport_(context_, std::move(tls)) {}

    asio::io_context& context() { return context_; }
    void expires_after_ms(std::int64_t timeout_ms) { transport_.expires_after_ms(timeout_ms); }

    error_code connect(const std::vector<Endpoint>& addresses) {
        error_code failure = asio::error::not_found;
        for (const Endpoint& address : addresses) {
            transport_.stream().async_connect(address, [this](error_code with) { failure_ = with; });
            failure = finish();
            if (!failure || failure == beast::error::timeout) return failure;
            error_code ignored;
            transport_.stream().socket().close(ignored);
        }
        return failure;
    }

    error_code handshake(const std::string& host) {
        auto& tls = *transport_.tls();
        error_code is_name;
        asio::ip::make_address(host, is_name);
        if (is_name) SSL_set_tlsext_host_name(tls.native_handle(), host.c_str());
        tls.set_verify_callback(asio::ssl::host_name_verification(host));
        tls.async_handshake(asio::ssl::stream_base::client, [this](error_code with) { failure_ = with; });
        return finish();
    }

    error_code write(const http::request<http::string_body>& request) {
        http::async_write(transport_, request, [this](error_code with, std::size_t) { failure_ = with; });
        return finish();
    }

    template <typename Parser>
    error_code read_header(Parser& parser) {
        http::async_read_header(transport_, buffer_, parser, [this](error_code with, std::size_t) { failure_ = with; });
        return finish();
    }

    template <typename Parser>
    error_code read(Parser& parser) {
        http::async_read(transport_, buffer_, parser, [this](error_code with, std::size_t) { failure_ = with; });
        return finish();
    }

    template <typename Parser>
    error_code read_some(Parser& parser) {
        http::async_read_some(transport_, buffer_, parser, [this](error_code with, std::size_t) { failure_ = with; });
        return finish();
    }

private:
    error_code finish() {
        context_.restart();
        context_.run();
        return failure_;
    }

    asio::io_context context_{1};
    HttpTransport transport_;
    beast::flat_buffer buffer_;
    error_code failure_;
};

// True if a server that gave no answer in plain HTTP speaks TLS.
bool speaks_tls(const HttpEndpoint& endpoint) {
    constexpr std::int64_t kWithin_ms = 2000;
    if (endpoint.tls || !endpoint.path.empty()) return false;
    auto tls = make_tls_client({});
    if (!tls) return false;
    Connection connection(std::move(*tls));
    const auto addresses = addresses_of(endpoint, connection.context());
    connection.expires_after_ms(kWithin_ms);
    if (!addresses || connection.connect(*addresses)) return false;
    const auto failure = connection.handshake(endpoint.host);
    const int reason = ERR_GET_REASON(static_cast<unsigned long>(failure.value()));
    return !failure ||
           (failure.category() == asio::error::get_ssl_category() && reason == SSL_R_CERTIFICATE_VERIFY_FAILED);
}

// Returns the error for an answer that could not be read.
std::unexpected<Error> no_answer(const error_code& failure, const std::string& address) {
    const auto endpoint = parse_http_endpoint(address);
    if (failure != beast::error::timeout && endpoint && speaks_tls(*endpoint)) {
        return fail(ErrorCode::invalid_argument,
                    address + ": TLS is spoken there: write https://" +
                        address.substr(address.find("://") == std::string::npos ? 0 : address.find("://") + 3));
    }
    return failed(failure, "read from " + address, false);
}

// Connects and sends the request.
Result<std::unique_ptr<Connection>> ask(const std::string& address, std::string_view method, std::string_view target,
                                        std::string_view body, const HttpClientOptions& options,
                                        error_code& write_failure) {
    const auto endpoint = parse_http_endpoint(address);
    if (!endpoint) return std::unexpected(endpoint.error());
    std::shared_ptr<TlsContext> tls;
    if (endpoint->tls) {
        auto made = make_tls_client(options);
        if (!made) return std::unexpected(made.error());
        tls = std::move(*made);
    }
    auto connection = std::make_unique<Connection>(std::move(tls));
    const auto addresses = addresses_of(*endpoint, connection->context());
    if (!addresses) return std::unexpected(addresses.error());
    connection->expires_after_ms(options.timeout_ms);
    if (const auto failure = connection->connect(*addresses)) return failed(failure, "connect to " + address, true);
    if (endpoint->tls) {
        if (const auto failure = connection->handshake(endpoint->host)) {
            return failed(failure, "connect to " + address, false);
        }
    }

    http::request<http::string_body> request;
    request.version(11);
    request.method_string(method);
    request.target(target);
    const bool v6 = endpoint->host.find(':') != std::string::npos;
    const std::string host = v6 ? "[" + endpoint->host + "]" : endpoint->host;
    request.set(http::field::host, endpoint->path.empty() ? host + ":" + std::to_string(endpoint->port) : "localhost");
    if (!options.bearer_token.empty()) request.set(http::field::authorization, "Bearer " + options.bearer_token);
    request.keep_alive(false);
    if (!body.empty()) {
        request.set(http::field::content_type, "application/json");
        request.body() = body;
    }
    request.prepare_payload();
    // A server that refuses a large body answers and closes before it has read everything, so the answer is always
    // read.
    write_failure = connection->write(request);
    if (write_failure == beast::error::timeout) return failed(write_failure, "write to " + address, false);
    return connection;
}

template <typename Message>
HttpResponse response_of(Message& answer) {
    HttpResponse response;
    response.status = answer.result_int();
    response.content_type = answer[http::field::content_type];
    for (const auto& field : answer) response.headers.emplace_back(field.name_string(), field.value());
    return response;
}

Result<HttpResponse> exchange(const std::string& address, std::string_view method, std::string_view target,
                              std::string_view body, const HttpClientOptions& options) {
    error_code write_failure;
    const auto connection = ask(address, method, target, body, options, write_failure);
    if (!connection) return std::unexpected(connection.error());
    http::response_parser<http::string_body> parser;
    parser.body_limit(kAnswerBytesMax);
    if (const auto failure = (*connection)->read(parser)) {
        return no_answer(write_failure ? write_failure : failure, address);
    }
    HttpResponse response = response_of(parser.get());
    response.body = std::move(parser.get().body());
    return response;
}

Result<void> follow(const std::string& address, std::string_view target,
                    const std::function<bool(std::string_view part)>& take, const HttpClientOptions& options) {
    error_code write_failure;
    const auto connection = ask(address, "GET", target, {}, options, write_failure);
    if (!connection) return std::unexpected(connection.error());
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    if (const auto failure = (*connection)->read_header(parser)) {
        return no_answer(write_failure ? write_failure : failure, address);
    }
    HttpResponse response = response_of(parser.get());
    std::vector<char> part(65536);
    while (!parser.is_done()) {
        parser.get().body() = {.data = part.data(), .size = part.size(), .more = true};
        (*connection)->expires_after_ms(options.timeout_ms);
        error_code failure = (*connection)->read_some(parser);
        if (failure == http::error::need_buffer) failure = {};
        if (failure) return failed(failure, "read from " + address, false);
        const std::string_view got(part.data(), part.size() - parser.get().body().size);
        if (response.status != 200) {
            response.body += got;
            if (response.body.size() > kAnswerBytesMax) break;
        } else if (!got.empty() && !take(got)) {
            return {};
        }
    }
    if (response.status != 200) return std::unexpected(error_of_response(response));
    return {};
}

std::unexpected<Error> no_endpoint(std::string_view text) {
    return fail(
        ErrorCode::invalid_argument,
        "\"" + std::string(text) + "\" is not an endpoint: expected unix:PATH, http://HOST:PORT or https://HOST:PORT");
}

}  // namespace

Result<HttpEndpoint> parse_http_endpoint(std::string_view text) {
    const std::string_view whole = text;
    const auto skip = [&](std::string_view prefix) {
        if (!text.starts_with(prefix)) return false;
        text.remove_prefix(prefix.size());
        return true;
    };
    const bool tls = skip("https://");
    const bool plain = !tls && skip("http://");
    const bool named_unix = !tls && !plain && skip("unix:");
    if (text.find("://") != std::string_view::npos) return no_endpoint(whole);
    if (named_unix || (!tls && !plain && text.find('/') != std::string_view::npos)) {
        if (text.empty()) return no_endpoint(whole);
        if (text.size() >= 108) return fail(ErrorCode::invalid_argument, "socket path too long: " + std::string(text));
        return HttpEndpoint{.path = std::string(text)};
    }
    if (text.ends_with('/')) text.remove_suffix(1);
    auto host_port = parse_host_port(text);
    if (!host_port || host_port->host.find_first_of("/@?# ") != std::string::npos) return no_endpoint(whole);
    // Certificates may name "localhost", which parse_host_port has replaced by an address.
    if (text.starts_with("localhost:")) host_port->host = "localhost";
    error_code is_name;
    asio::ip::make_address(host_port->host, is_name);
    if (is_name && !tls && !plain) return no_endpoint(whole);
    return HttpEndpoint{.host = std::move(host_port->host), .port = host_port->port, .tls = tls};
}

Result<HttpClientOptions> http_client_options(const HttpCredentials& credentials) {
    HttpClientOptions options{.ca_file = credentials.ca_file,
                              .certificate_file = credentials.certificate_file,
                              .key_file = credentials.key_file};
    if (credentials.token_file.empty()) return options;
    const auto text = read_file(credentials.token_file);
    if (!text) return std::unexpected(text.error().within("the token"));
    options.bearer_token = text->substr(0, text->find_first_of("\r\n"));
    if (options.bearer_token.empty()) {
        return fail(ErrorCode::invalid_argument, "the first line of " + credentials.token_file + " has no token");
    }
    return options;
}

Result<HttpResponse> http_request(const std::string& endpoint, std::string_view method, std::string_view target,
                                  std::string_view body, const HttpClientOptions& options) {
    try {
        return exchange(endpoint, method, target, body, options);
    } catch (const std::exception& error) {
        return fail(ErrorCode::io, "request to " + endpoint + ": " + error.what());
    }
}

Result<void> http_get_stream(const std::string& endpoint, std::string_view target,
                             const std::function<bool(std::string_view part)>& take, const HttpClientOptions& options) {
    try {
        return follow(endpoint, target, take, options);
    } catch (const std::exception& error) {
        return fail(ErrorCode::io, "request to " + endpoint + ": " + error.what());
    }
}

}  // namespace larder
