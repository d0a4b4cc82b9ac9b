#pragma once

// Samples a byte counter many times a second and reports how far it ever ran ahead of a rate: the largest (bytes
// counted - rate * time) over any stretch of the watch. Only bursts may cause this excess.

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "base/error.h"

namespace larder::test {

class RateWatch {
public:
    // `counter` returns the bytes so far, from any start; it is called on the watch's own thread. Errors are skipped.
    RateWatch(std::function<Result<std::uint64_t>()> counter, double bytes_per_second);
    ~RateWatch();
    RateWatch(const RateWatch&) = delete;
    RateWatch& operator=(const RateWatch&) = delete;

    // Call after `stop`.
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

}  // namespace larder::test
