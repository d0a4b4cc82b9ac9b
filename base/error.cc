#include "base/error.h"

#include <cerrno>
#include <system_error>

namespace larder {

std::string_view name(ErrorCode code) {
    switch (code) {
        case ErrorCode::invalid_argument: return "invalid_argument";
        case ErrorCode::not_found: return "not_found";
        case ErrorCode::already_exists: return "already_exists";
        case ErrorCode::permission_denied: return "permission_denied";
        case ErrorCode::unavailable: return "unavailable";
        case ErrorCode::corrupt: return "corrupt";
        case ErrorCode::changed: return "changed";
        case ErrorCode::no_space: return "no_space";
        case ErrorCode::io: return "io";
        case ErrorCode::timeout: return "timeout";
        case ErrorCode::protocol: return "protocol";
        case ErrorCode::unsupported: return "unsupported";
        case ErrorCode::cancelled: return "cancelled";
        case ErrorCode::internal: return "internal";
    }
    return "internal";
}

Error Error::within(std::string_view context) const {
    return Error{code, std::string(context) + ": " + message, system_errno};
}

std::unexpected<Error> fail(ErrorCode code, std::string message) {
    return std::unexpected(Error{code, std::move(message), 0});
}

namespace {

ErrorCode code_of(int system_errno) {
    switch (system_errno) {
        case ENOENT:
        case ENOTDIR: return ErrorCode::not_found;
        case EEXIST: return ErrorCode::already_exists;
        case EACCES:
        case EPERM: return ErrorCode::permission_denied;
        case ENOSPC:
        case EDQUOT: return ErrorCode::no_space;
        case EINVAL: return ErrorCode::invalid_argument;
        case ETIMEDOUT: return ErrorCode::timeout;
        case ECONNREFUSED:
        case EPIPE:
        case ECONNRESET: return ErrorCode::unavailable;
        case ENOSYS:
        case EOPNOTSUPP: return ErrorCode::unsupported;
        case ECANCELED: return ErrorCode::cancelled;
        default: return ErrorCode::io;
    }
}

}  // namespace

Error errno_error(int system_errno, std::string_view what) {
    return Error{code_of(system_errno), std::string(what) + ": " + std::generic_category().message(system_errno),
                 system_errno};
}

std::unexpected<Error> fail_errno(int system_errno, std::string_view what) {
    return std::unexpected(errno_error(system_errno, what));
}

}  // namespace larder
