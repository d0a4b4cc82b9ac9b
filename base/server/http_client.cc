#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include <chrono>
#include <exception>

#include "base/server/http.h"
#include "base/server/http_target.h"

namespace larder {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

using Protocol = asio::generic::stream_protocol;
using Stream = beast::basic_stream<Protocol>;

constexpr std::size_t kAnswerBytesMax = 256u << 20;

Result<Protocol::endpoint> endpoint_of(const std::string& address) {
    if (address.find('/') != std::string::npos) {
        if (address.size() >= 108) return fail(ErrorCode::invalid_argument, "socket path too long: " + address);
        return Protocol::endpoint(asio::local::stream_protocol::endpoint(address));
    }
    const auto host_port = parse_host_port(address);
    if (!host_port) return std::unexpected(host_port.error());
    boost::system::error_code failure;
    const auto ip = asio::ip::make_address(host_port->host, failure);
    if (failure) return fail(ErrorCode::invalid_argument, "\"" + host_port->host + "\" is not an IP address");
    return Protocol::endpoint(asio::ip::tcp::endpoint(ip, host_port->port));
}

std::unexpected<Error> failed(const boost::system::error_code& failure, const std::string& what, bool connecting) {
    if (failure == beast::error::timeout) return fail(ErrorCode::timeout, what + ": no answer in time");
    Error error = errno_error(failure.value(), what);
    if (failure.category() != boost::system::system_category()) {
        error = Error{ErrorCode::unavailable, what + ": " + failure.message(), 0};
    }
    // Whatever the reason, nobody answers there; but a refusal for want of rights keeps its own code.
    if (connecting && error.code != ErrorCode::permission_denied) error.code = ErrorCode::unavailable;
    return std::unexpected(std::move(error));
}

class Exchange {
public:
    explicit Exchange(std::int64_t timeout_ms) : stream_(context_) {
        stream_.expires_after(std::chrono::milliseconds(timeout_ms));
    }

    boost::system::error_code connect(const Protocol::endpoint& endpoint) {
        stream_.async_connect(endpoint, [this](boost::system::error_code failure) { end(failure); });
        return finish();
    }

    boost::system::error_code write(const http::request<http::string_body>& request) {
        http::async_write(stream_, request, [this](boost::system::error_code failure, std::size_t) { end(failure); });
        return finish();
    }

    boost::system::error_code read(http::response_parser<http::string_body>& parser) {
        http::async_read(stream_, buffer_, parser,
                         [this](boost::system::error_code failure, std::size_t) { end(failure); });
        return finish();
    }

private:
    void end(boost::system::error_code failure) { failure_ = failure; }
    boost::system::error_code finish() {
        context_.restart();
        context_.run();
        return failure_;
    }

    asio::io_context context_{1};
    Stream stream_;
    beast::flat_buffer buffer_;
    boost::system::error_code failure_;
};

Result<HttpResponse> exchange(const std::string& address, std::string_view method, std::string_view target,
                              std::string_view body, std::int64_t timeout_ms) {
    const auto endpoint = endpoint_of(address);
    if (!endpoint) return std::unexpected(endpoint.error());
    Exchange run(timeout_ms);
    if (const auto failure = run.connect(*endpoint)) return failed(failure, "connect to " + address, true);

    http::request<http::string_body> request;
    request.version(11);
    request.method_string(method);
    request.target(target);
    request.set(http::field::host, address.find('/') == std::string::npos ? address : "localhost");
    request.keep_alive(false);
    if (!body.empty()) {
        request.set(http::field::content_type, "application/json");
        request.body() = body;
    }
    request.prepare_payload();
    // A server that refuses a large body answers and closes before it has read all: so the answer is read in any case.
    const auto write_failure = run.write(request);
    if (write_failure == beast::error::timeout) return failed(write_failure, "write to " + address, false);
    http::response_parser<http::string_body> parser;
    parser.body_limit(kAnswerBytesMax);
    if (const auto failure = run.read(parser)) {
        return failed(write_failure ? write_failure : failure, "read from " + address, false);
    }

    const auto& answer = parser.get();
    HttpResponse response;
    response.status = answer.result_int();
    response.content_type = answer[http::field::content_type];
    for (const auto& field : answer) response.headers.emplace_back(field.name_string(), field.value());
    response.body = std::move(parser.get().body());
    return response;
}

}  // namespace

Result<HttpResponse> http_request(const std::string& address, std::string_view method, std::string_view target,
                                  std::string_view body, std::int64_t timeout_ms) {
    try {
        return exchange(address, method, target, body, timeout_ms);
    } catch (const std::exception& error) {
        return fail(ErrorCode::io, "request to " + address + ": " + error.what());
    }
}

}  // namespace larder
