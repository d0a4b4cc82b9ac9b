#pragma once

// Invariants at boundaries, on in every build: a broken invariant ends the process with file, line and text, because
// wrong training data is worse than a restart. Only for the program's own mistakes; bad input is an Error.

namespace larder {
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);
}  // namespace larder

#define LARDER_ASSERT(condition) \
    (static_cast<bool>(condition) ? void(0) : ::larder::assertion_failed(#condition, __FILE__, __LINE__))
