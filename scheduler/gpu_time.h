#pragma once

// GPU time of a tenant or a job, by clock interval, as far back as a policy looks. Callers pass the time with every
// call; add() drops old intervals.

#include <cstdint>
#include <vector>

namespace larder::scheduler {

// The past that a policy looks at: the current interval and those just before it. Intervals begin at multiples of their
// length.
struct TimeWindow {
    double interval_s = 3600;
    std::uint32_t intervals = 24;

    std::int64_t interval_at(double time_s) const;
};

// A stretch of time, with the numbers of the intervals in which it begins and ends. It is computed once for the
// thousands of jobs that run during it.
struct TimeStretch {
    TimeStretch(double begin_s, double end_s, const TimeWindow& in_window)
        : from_s(begin_s),
          to_s(end_s),
          window(in_window),
          first(in_window.interval_at(begin_s)),
          last(in_window.interval_at(end_s)) {}

    double from_s;
    double to_s;
    TimeWindow window;
    std::int64_t first;
    std::int64_t last;
};

struct GpuTime {
    std::int64_t interval = 0;              // number of the last interval
    std::vector<double> gpu_s_by_interval;  // oldest first, ending with `interval`

    // Adds `gpus` GPUs used during the stretch. Drops intervals older than its window.
    void add(const TimeStretch& used, double gpus);
    void add(double from_s, double to_s, double gpus, const TimeWindow& window) {
        add(TimeStretch(from_s, to_s, window), gpus);
    }
    // Returns the GPU-seconds in the window that ends with the interval of `now_s`.
    double sum(double now_s, const TimeWindow& window) const;

    bool operator==(const GpuTime&) const = default;
};

}  // namespace larder::scheduler
