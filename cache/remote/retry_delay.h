#pragma once

// The delay before a retry: exponential backoff with jitter, so that clients that failed together do not retry
// together. Half of the delay is fixed, half is random. Each delay is a quarter longer than the last, so the last delay
// is a small part of the total: an outage costs little more time than it lasts.

#include <algorithm>
#include <cstdint>

namespace larder::cache {

inline constexpr std::int64_t kRetryDelayFirst_ns = 50'000'000;
inline constexpr std::int64_t kRetryDelayMost_ns = 5'000'000'000;

// `failures`: number of failures so far, at least 1. `draw`: uniform random bits. `asked_ns`: the least delay that the
// remote requested (Retry-After); 0: none.
constexpr std::int64_t retry_delay_ns(unsigned failures, std::uint64_t draw, std::int64_t asked_ns = 0) {
    std::int64_t most_ns = kRetryDelayFirst_ns;
    for (unsigned i = 1; i < failures && most_ns < kRetryDelayMost_ns; ++i) most_ns += most_ns / 4;
    most_ns = std::min(most_ns, kRetryDelayMost_ns);
    const std::int64_t half_ns = most_ns / 2;
    const std::int64_t drawn_ns = static_cast<std::int64_t>(draw % static_cast<std::uint64_t>(half_ns + 1));
    return std::max(half_ns + drawn_ns, std::min(asked_ns + drawn_ns, 12 * kRetryDelayMost_ns));
}

}  // namespace larder::cache
