#pragma once

// What the transfers know of one endpoint: how much may be under way there, who waits for that, and how long requests
// take, from which it follows when one is late. One thread; pure bookkeeping.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "cache/remote/concurrency_limit.h"

namespace larder::cache {

struct HttpFlight;

// The 99th percentile of the last few hundred durations.
class LateAfter {
public:
    void add(std::int64_t duration_ns);
    // Nothing before there is enough to go by.
    std::optional<std::int64_t> ns() const;

private:
    static constexpr std::size_t kKept = 512;
    static constexpr std::size_t kEnough = 100;
    std::array<std::int64_t, kKept> durations_ns_{};
    std::size_t count_ = 0;  // ever
};

struct HttpEndpoint {
    explicit HttpEndpoint(std::size_t connections_max) : limit(connections_max) {}

    ConcurrencyLimit limit;
    std::deque<HttpFlight*> waiting;
    LateAfter late_after;
};

}  // namespace larder::cache
