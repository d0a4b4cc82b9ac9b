#pragma once

// A job's f*: the rate it would read at if it never waited for data, measured while it does wait. Over any stretch of
// time it is the bytes its training loops took, divided by the time they did not spend waiting; the wait is that of the
// loop itself, not of loader workers, whose idling is not the GPU's. Single intervals are noisy (a checkpoint, an
// evaluation, the first batches while kernels are compiled), so it is taken over a window of intervals, leaving out the
// first ones and those that, with their neighbours, are far below the median by more than a batch. Pure bookkeeping:
// one thread at a time, no clock.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace larder::allocator {

class IdealRate {
public:
    // What all ranks of a job did since the last interval. `busy_s`: seconds not spent waiting, summed over ranks.
    struct Interval {
        std::uint64_t bytes = 0;
        double busy_s = 0;
        std::uint32_t ranks = 1;
    };

    void add(const Interval& interval);
    // Bytes per second of the whole job; nothing before there is enough to go by.
    std::optional<double> bytes_per_second() const;
    // What was measured before a restart, until there is enough to go by again.
    void resume(double bytes_per_second) { resumed_ = bytes_per_second; }
    // The job's ranks or its batch changed: what was measured no longer holds.
    void forget();

private:
    static constexpr double kWarmUp_s = 2;       // of busy time per rank
    static constexpr double kPieceBusy_s = 0.2;  // per rank: shorter stretches are joined, or their noise would count
    static constexpr std::size_t kWindow = 60;   // pieces
    static constexpr std::size_t kPiecesMin = 3;

    double warmed_s_ = 0;
    Interval joining_;
    std::deque<Interval> pieces_;
    std::optional<double> resumed_;
};

}  // namespace larder::allocator
