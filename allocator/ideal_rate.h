#pragma once

// A job's f*: the rate it would read at if it never waited for data, measured while it does wait. Over any stretch of
// time, f* is the bytes its training loops took, divided by the time they did not spend waiting. The wait is that of
// the loop, not of loader workers, because an idle worker does not mean an idle GPU. Single intervals are noisy (a
// checkpoint, an evaluation, the first batches while kernels are compiled). So f* is taken over a window of intervals,
// without the first ones and without those that, with their neighbours, are more than a batch below the median. Pure
// bookkeeping: one thread at a time, no clock.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace larder::allocator {

class IdealRate {
public:
    // The work of all ranks of a job since the last interval. `busy_s`: seconds not spent waiting, summed over ranks.
    struct Interval {
        std::uint64_t bytes = 0;
        double busy_s = 0;
        std::uint32_t ranks = 1;
    };

    void add(const Interval& interval);
    // Returns bytes per second of the whole job; nullopt until there are enough measurements.
    std::optional<double> bytes_per_second() const { return rate_; }
    // Sets the rate measured before a restart, used until there are enough measurements again.
    void resume(double bytes_per_second) {
        if (pieces_.size() < kPiecesMin) rate_ = bytes_per_second;
    }
    // Drops all measurements, because the job's ranks or its batch changed.
    void forget();

private:
    static constexpr double kWarmUp_s = 2;        // of busy time per rank
    static constexpr int kFewerIntervalsMax = 3;  // that are ignored
    static constexpr double kPieceBusy_s = 0.2;   // per rank: shorter stretches are joined to reduce noise
    static constexpr std::size_t kWindow = 60;    // pieces
    static constexpr std::size_t kPiecesMin = 3;

    double measured() const;

    std::optional<double> rate_;  // as measured, or as resumed
    double warmed_s_ = 0;
    int fewer_intervals_ = 0;  // of the last intervals, those that read and had fewer ranks than the pieces
    Interval joining_{.ranks = 0};
    std::deque<Interval> pieces_;
};

}  // namespace larder::allocator
