#pragma once

// The only source of time. Decision code takes a Clock; production passes SteadyClock, tests pass ManualClock and move
// it by hand, so that rates, timeouts and latencies are deterministic. Times are nanoseconds from an arbitrary start.

#include <atomic>
#include <cstdint>

namespace larder {

class Clock {
public:
    virtual ~Clock() = default;
    virtual std::int64_t now_ns() const = 0;
};

class SteadyClock final : public Clock {
public:
    std::int64_t now_ns() const override;
};

// Returns the time for which the machine has been suspended since it booted: CLOCK_BOOTTIME less CLOCK_MONOTONIC.
// SteadyClock stands still meanwhile. A deadline that others rely on, such as a lease's end, must count this time.
std::int64_t slept_ns();

// Returns the time since the machine booted, suspended time included (CLOCK_BOOTTIME).
std::int64_t boot_time_ns();

// Wall-clock time, for time stamps in files, messages and logs; never for measuring.
std::int64_t unix_time_ns();

// Puts the calling thread to sleep, for pauses between retries. Never called on a data-plane thread.
void sleep_ns(std::int64_t duration_ns);

inline double seconds_since(const Clock& clock, std::int64_t began_ns) {
    return static_cast<double>(clock.now_ns() - began_ns) * 1e-9;
}

// A clock that moves only when told to. Any thread may read and advance it.
class ManualClock final : public Clock {
public:
    explicit ManualClock(std::int64_t start_ns = 0) : now_ns_(start_ns) {}
    std::int64_t now_ns() const override { return now_ns_.load(std::memory_order_relaxed); }
    void advance_ns(std::int64_t by_ns) { now_ns_.fetch_add(by_ns, std::memory_order_relaxed); }
    void set_ns(std::int64_t to_ns) { now_ns_.store(to_ns, std::memory_order_relaxed); }

private:
    std::atomic<std::int64_t> now_ns_;
};

}  // namespace larder
