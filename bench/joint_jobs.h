#pragma once

// The training jobs of the joint bench: each a thread with a feeder and a consumer of rate f*, reading epoch after
// epoch until it is told to stop.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "bench/feeder.h"

namespace larder::bench {

class JointJobRun {
public:
    using Open = std::function<Result<std::unique_ptr<Feeder>>()>;

    // Opens its feeder in its own thread, and begins.
    JointJobRun(Open open, double ideal_bytes_per_second);
    // Stops it.
    ~JointJobRun();
    JointJobRun(const JointJobRun&) = delete;
    JointJobRun& operator=(const JointJobRun&) = delete;

    std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
    std::uint32_t epochs() const { return epochs_.load(std::memory_order_relaxed); }
    // Why it ended by itself, if it did.
    Result<void> state() const;
    void stop();

private:
    void run(const Open& open, double ideal_bytes_per_second);

    std::atomic<std::uint64_t> bytes_{0};
    std::atomic<std::uint32_t> epochs_{0};
    std::atomic<bool> stopping_{false};
    mutable std::mutex mutex_;
    Result<void> state_;
    std::thread thread_;
};

}  // namespace larder::bench
