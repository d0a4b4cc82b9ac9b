#pragma once

// When to ask a remote again that failed: exponential backoff with jitter, so that many clients that failed together do
// not come back together. Half of the delay is fixed, half is drawn. Delays grow by a quarter, so the last of them is
// a small part of all: an outage costs little more time than it lasts.

#include <algorithm>
#include <cstdint>

namespace larder::cache {

inline constexpr std::int64_t kRetryDelayFirst_ns = 50'000'000;
inline constexpr std::int64_t kRetryDelayMost_ns = 5'000'000'000;

// `failures`: how often it has failed, 1 and more. `draw`: uniform random bits. `asked_ns`: the least the remote asked
// for (Retry-After); 0: nothing.
constexpr std::int64_t retry_delay_ns(unsigned failures, std::uint64_t draw, std::int64_t asked_ns = 0) {
    std::int64_t most_ns = kRetryDelayFirst_ns;
    for (unsigned i = 1; i < failures && most_ns < kRetryDelayMost_ns; ++i) most_ns += most_ns / 4;
    most_ns = std::min(most_ns, kRetryDelayMost_ns);
    const std::int64_t half_ns = most_ns / 2;
    const std::int64_t drawn_ns = static_cast<std::int64_t>(draw % static_cast<std::uint64_t>(half_ns + 1));
    return std::max(half_ns + drawn_ns, std::min(asked_ns + drawn_ns, 12 * kRetryDelayMost_ns));
}

}  // namespace larder::cache
