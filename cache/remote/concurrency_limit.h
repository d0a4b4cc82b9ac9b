#pragma once

// Limits the number of requests in flight at one endpoint, like TCP's congestion control. The window grows slowly while
// it is used and first bytes arrive about as fast as the fastest so far. The window shrinks slowly if first bytes take
// several times as long. It halves if the endpoint reports overload (503 SlowDown, 429) or does not answer at all. Pure
// bookkeeping; one thread at a time.

#include <cstddef>
#include <cstdint>

namespace larder::cache {

class ConcurrencyLimit {
public:
    explicit ConcurrencyLimit(std::size_t window_max);

    bool may_start() const { return static_cast<double>(in_flight_) < window_; }
    std::size_t in_flight() const { return in_flight_; }
    // The number of requests that may be in flight.
    std::size_t window() const { return static_cast<std::size_t>(window_); }

    void started() { ++in_flight_; }
    // `first_byte_ns`: time from the request to the first byte of the answer.
    void succeeded(std::int64_t first_byte_ns, std::int64_t now_ns);
    void overloaded(std::int64_t now_ns);
    // The request ended for a reason unrelated to load.
    void ended() { --in_flight_; }

private:
    void note_fastest(std::int64_t first_byte_ns, std::int64_t now_ns);

    double window_;
    double window_max_;
    std::size_t in_flight_ = 0;
    std::int64_t halved_ns_ = 0;
    // The fastest answer of the current and of the previous period. Older ones are dropped, because an endpoint may
    // become slower for good.
    std::int64_t fastest_ns_ = 0;
    std::int64_t fastest_before_ns_ = 0;
    std::int64_t period_began_ns_ = 0;
};

}  // namespace larder::cache
