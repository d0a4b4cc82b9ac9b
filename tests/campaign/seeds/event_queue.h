#pragma once

// The base of the simulated cluster: seeded random numbers, the order of events in simulated time, and the trace. All
// parts of one simulation share one of each and run on one thread, so the same seed gives the same trace.

#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"

namespace larder::campaign {

inline constexpr std::int64_t kMillisecond_ns = 1'000'000;
inline constexpr std::int64_t kSecond_ns = 1'000'000'000;
inline constexpr std::int64_t kNever_ns = INT64_MAX;

class WorldRandom {
public:
    explicit WorldRandom(std::uint64_t seed) : seed_(mix64(seed)) {}

    std::uint64_t next() { return mix64(seed_ ^ mix64(++count_)); }
    // Below `end`, which is above 0.
    std::uint64_t below(std::uint64_t end) { return next() % end; }
    std::int64_t between(std::int64_t low, std::int64_t high) {
        return low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low + 1)));
    }
    double real() { return static_cast<double>(next() >> 11) * 0x1p-53; }
    bool chance(double part) { return part > 0 && real() < part; }

private:
    std::uint64_t seed_;
    std::uint64_t count_ = 0;
};

// The first broken invariant ends a simulation.
class Events {
public:
    explicit Events(bool prints) : prints_(prints) {}

    std::int64_t now_ns() const { return now_ns_; }
    void at(std::int64_t time_ns, std::function<void()> run);
    void after(std::int64_t delay_ns, std::function<void()> run) { at(now_ns_ + delay_ns, std::move(run)); }
    // Runs all events up to this time, unless an invariant breaks.
    void run_until(std::int64_t time_ns);

    // Adds to the trace's hash.
    void note(std::uint64_t what) { hash_ = mix64(hash_ ^ what ^ static_cast<std::uint64_t>(now_ns_)); }
    // Adds a line to the trace. `text` is made only if lines are printed.
    template <typename Text>
    void trace(std::uint64_t what, const Text& text) {
        note(what);
        if (prints_) print(text());
    }
    void fail(const std::string& what);
    const std::string& failure() const { return failure_; }
    bool failed() const { return !failure_.empty(); }
    std::uint64_t hash() const { return hash_; }
    std::uint64_t count() const { return count_; }

private:
    struct TimedEvent {
        std::int64_t time_ns;
        std::uint64_t sequence;
        std::function<void()> run;
        bool operator<(const TimedEvent& other) const {
            return std::pair(time_ns, sequence) > std::pair(other.time_ns, other.sequence);
        }
    };
    void print(const std::string& text) const;

    bool prints_;
    std::int64_t now_ns_ = 0;
    std::uint64_t sequence_ = 0;
    std::uint64_t count_ = 0;
    std::uint64_t hash_ = 0;
    std::string failure_;
    std::priority_queue<TimedEvent> queue_;
};

// The clock of one machine. It runs with simulated time, from a start of its own, and may jump forward.
class MachineClock final : public Clock {
public:
    explicit MachineClock(const Events& events) : events_(events) {}
    std::int64_t now_ns() const override { return events_.now_ns() + offset_ns_; }
    std::int64_t to_simulated_ns(std::int64_t time_ns) const {
        return time_ns == kNever_ns ? kNever_ns : time_ns - offset_ns_;
    }
    void set_offset_ns(std::int64_t offset_ns) { offset_ns_ = offset_ns; }
    void jump_ns(std::int64_t by_ns) { offset_ns_ += by_ns; }

private:
    const Events& events_;
    std::int64_t offset_ns_ = 0;
};

}  // namespace larder::campaign
