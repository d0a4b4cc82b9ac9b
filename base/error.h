#pragma once

// Errors are values. Every fallible function returns Result<T>; an Error says what failed, on what, and why, in one
// sentence that a user can act on, with the errno where the kernel gave one. Error is a plain value: copy it, add
// context with `within`, print `message`.

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace larder {

enum class ErrorCode : std::uint8_t {
    invalid_argument,
    not_found,
    already_exists,
    permission_denied,
    unavailable,
    corrupt,
    changed,
    no_space,
    io,
    timeout,
    protocol,
    unsupported,
    cancelled,
    internal,
};

// The stable lower-case name of a code, as it appears in JSON and logs ("not_found").
std::string_view name(ErrorCode code);

struct Error {
    ErrorCode code = ErrorCode::internal;
    std::string message;
    int system_errno = 0;

    // Returns the same error with "context: " put before the message.
    Error within(std::string_view context) const;
};

template <typename T>
using Result = std::expected<T, Error>;

// Returns std::unexpected holding an Error; `return fail(ErrorCode::not_found, "dataset \"" + name + "\" is unknown");`
std::unexpected<Error> fail(ErrorCode code, std::string message);

// Returns the Error of a failed system call: "<what>: <strerror>", with the code that fits the errno.
Error errno_error(int system_errno, std::string_view what);
std::unexpected<Error> fail_errno(int system_errno, std::string_view what);

}  // namespace larder
