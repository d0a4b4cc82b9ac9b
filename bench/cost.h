#pragma once

// Times a piece of work on a machine that others may load: by the wall clock, and by the CPU time of this process.

#include <sys/resource.h>

#include <cstdlib>

#include "base/clock.h"

namespace larder::bench {

struct Cost {
    double wall_ms = 0;
    double cpu_ms = 0;

    Cost operator+(const Cost& other) const { return {wall_ms + other.wall_ms, cpu_ms + other.cpu_ms}; }
};

// Returns the CPU time of all threads of this process so far.
inline double cpu_ms() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    const auto ms = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
    };
    return ms(usage.ru_utime) + ms(usage.ru_stime);
}

template <typename Work>
Cost cost_of(const Work& work) {
    const SteadyClock clock;
    const double cpu_before_ms = cpu_ms();
    const std::int64_t began_ns = clock.now_ns();
    work();
    const std::int64_t ended_ns = clock.now_ns();
    return {.wall_ms = static_cast<double>(ended_ns - began_ns) * 1e-6, .cpu_ms = cpu_ms() - cpu_before_ms};
}

// Returns the machine's load: the average number of runnable tasks in the last minute.
inline double load_average() {
    double load = 0;
    return ::getloadavg(&load, 1) == 1 ? load : 0;
}

}  // namespace larder::bench
