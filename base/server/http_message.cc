#include "base/server/http_message.h"

#include <boost/json.hpp>

#include <array>
#include <charconv>

#include "base/server/json_text.h"

namespace larder {
namespace {

constexpr std::array kCodes{
    ErrorCode::invalid_argument,  ErrorCode::not_found,   ErrorCode::already_exists,
    ErrorCode::permission_denied, ErrorCode::unavailable, ErrorCode::corrupt,
    ErrorCode::changed,           ErrorCode::no_space,    ErrorCode::io,
    ErrorCode::timeout,           ErrorCode::protocol,    ErrorCode::unsupported,
    ErrorCode::cancelled,         ErrorCode::internal,
};

ErrorCode code_of_status(unsigned status) {
    if (status == 401 || status == 403) return ErrorCode::permission_denied;
    if (status == 404) return ErrorCode::not_found;
    if (status == 409) return ErrorCode::already_exists;
    if (status == 501) return ErrorCode::unsupported;
    if (status == 503) return ErrorCode::unavailable;
    if (status == 504) return ErrorCode::timeout;
    if (status == 507) return ErrorCode::no_space;
    return status >= 500 ? ErrorCode::internal : ErrorCode::invalid_argument;
}

const boost::json::string* string_at(const boost::json::object& object, std::string_view key) {
    const boost::json::value* value = object.if_contains(key);
    return value == nullptr ? nullptr : value->if_string();
}

}  // namespace

unsigned http_status_of(ErrorCode code) {
    switch (code) {
        case ErrorCode::invalid_argument:
        case ErrorCode::protocol: return 400;
        case ErrorCode::permission_denied: return 403;
        case ErrorCode::not_found: return 404;
        case ErrorCode::already_exists:
        case ErrorCode::changed:
        case ErrorCode::cancelled: return 409;
        case ErrorCode::unsupported: return 501;
        case ErrorCode::unavailable: return 503;
        case ErrorCode::timeout: return 504;
        case ErrorCode::no_space: return 507;
        case ErrorCode::corrupt:
        case ErrorCode::io:
        case ErrorCode::internal: return 500;
    }
    return 500;
}

HttpResponse http_error(unsigned status, std::string_view code, std::string_view message) {
    const boost::json::object body{{"error", boost::json::object{{"code", code}, {"message", message}}}};
    HttpResponse response;
    response.status = status;
    response.body = json_text(body) + "\n";
    return response;
}

HttpResponse http_error(const Error& error) {
    return http_error(http_status_of(error.code), name(error.code), error.message);
}

Error error_of_response(const HttpResponse& response) {
    Error error{code_of_status(response.status), "the server answered HTTP status " + std::to_string(response.status),
                0};
    boost::json::error_code failure;
    const boost::json::value body = boost::json::parse(response.body, failure);
    if (failure || !body.is_object()) return error;
    const boost::json::value* inner = body.get_object().if_contains("error");
    if (inner == nullptr || !inner->is_object()) return error;
    if (const auto* message = string_at(inner->get_object(), "message")) error.message.assign(message->c_str());
    if (const auto* code = string_at(inner->get_object(), "code")) {
        for (const ErrorCode candidate : kCodes) {
            if (name(candidate) == std::string_view(*code)) error.code = candidate;
        }
    }
    return error;
}

}  // namespace larder
