#pragma once

// How many requests to keep under way at one endpoint. Like TCP's congestion control: a little more for as long as the
// window is used and answers begin to arrive as fast as they ever did, a little less when they take several times as
// long, half when the endpoint says it is overloaded (503 SlowDown, 429) or does not answer at all. Pure bookkeeping;
// one thread at a time.

#include <cstddef>
#include <cstdint>

namespace larder::cache {

class ConcurrencyLimit {
public:
    explicit ConcurrencyLimit(std::size_t most);

    bool may_start() const { return static_cast<double>(in_flight_) < window_; }
    std::size_t in_flight() const { return in_flight_; }
    // Whole requests that may be under way.
    std::size_t window() const { return static_cast<std::size_t>(window_); }

    void started() { ++in_flight_; }
    // `first_byte_ns`: from the request to the answer's first byte.
    void succeeded(std::int64_t first_byte_ns, std::int64_t now_ns);
    void overloaded(std::int64_t now_ns);
    // For reasons that say nothing about load.
    void ended() { --in_flight_; }

private:
    void note_fastest(std::int64_t first_byte_ns, std::int64_t now_ns);

    double window_;
    double most_;
    std::size_t in_flight_ = 0;
    std::int64_t halved_ns_ = 0;
    // The fastest answer of the present period and of the one before it: an endpoint that moved away is noticed.
    std::int64_t fastest_ns_ = 0;
    std::int64_t fastest_before_ns_ = 0;
    std::int64_t period_began_ns_ = 0;
};

}  // namespace larder::cache
