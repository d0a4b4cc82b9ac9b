#pragma once

// Watches a counter of bytes many times a second, and says by how much it ever ran ahead of a rate: the largest
// (bytes counted - rate * time) over any stretch of the watch. That is what bursts must explain.

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "base/error.h"

namespace larder::bench {

class RateWatch {
public:
    // `counter`: bytes so far, since whenever; called from the watch's own thread. An error counts as no news.
    RateWatch(std::function<Result<std::uint64_t>()> counter, double bytes_per_second);
    ~RateWatch();
    RateWatch(const RateWatch&) = delete;
    RateWatch& operator=(const RateWatch&) = delete;

    // After `stop`.
    double excess_bytes() const { return excess_; }
    void stop();

private:
    void run();

    std::function<Result<std::uint64_t>()> counter_;
    double rate_;
    double excess_ = 0;
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

}  // namespace larder::bench
