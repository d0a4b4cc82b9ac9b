#pragma once

// GPU time by interval of the clock, of a tenant or a job: as much of the past as a policy looks back at. An account
// rolls on by itself: what is added or asked for says when that is.

#include <cstdint>
#include <vector>

namespace larder::scheduler {

// How far back is looked: the current interval and those just before it. Intervals begin at the multiples of their
// length.
struct TimeWindow {
    double interval_s = 3600;
    std::uint32_t intervals = 24;

    std::int64_t interval_at(double time_s) const;
};

struct GpuTime {
    std::int64_t interval = 0;              // number of the last one
    std::vector<double> gpu_s_by_interval;  // the last one last; nothing before the first

    // So many GPUs, all the time from then until then. What is older than the window is forgotten.
    void add(double from_s, double to_s, double gpus, const TimeWindow& window);
    // In the window that ends with the interval of `now_s`.
    double sum(double now_s, const TimeWindow& window) const;

    bool operator==(const GpuTime&) const = default;
};

}  // namespace larder::scheduler
