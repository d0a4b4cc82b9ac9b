#pragma once

// Counts what all nodes take from the remote, and checks it against the allocator's bandwidth. Independent of the
// token buckets: reads are counted where they reach the remote. In every window the reads may sum up to the bandwidth
// times the window, and the bursts of the buckets that existed in the window.

#include <cstdint>
#include <deque>
#include <string>

#include "tests/campaign/seeds/event_queue.h"

namespace larder::campaign {

class Bandwidth {
public:
    Bandwidth(Events& events, std::uint64_t burst_bytes) : events_(events), burst_bytes_(burst_bytes) {}

    void take(std::uint64_t bytes) { taken_bytes_ += static_cast<double>(bytes); }
    void refund(std::uint64_t bytes) { taken_bytes_ -= static_cast<double>(bytes); }
    void bucket_made() { ++buckets_made_; }
    void buckets_ended(std::uint64_t count) { buckets_ended_ += count; }

    // Call at regular times. `allowed_bytes_per_second`: the rate that all nodes may have together now.
    void sample(double allowed_bytes_per_second);
    double taken_bytes() const { return taken_bytes_; }

private:
    struct Sample {
        std::int64_t time_ns;
        double taken_bytes;
        double allowed_bytes;  // the integral of the allowed rate
        std::uint64_t buckets_ended;
    };

    Events& events_;
    std::uint64_t burst_bytes_;
    double taken_bytes_ = 0;
    double allowed_bytes_ = 0;
    double last_rate_ = 0;
    std::uint64_t buckets_made_ = 0;
    std::uint64_t buckets_ended_ = 0;
    std::deque<Sample> samples_;
};

}  // namespace larder::campaign
