#include "scheduler/gpu_time.h"

#include <algorithm>
#include <cmath>

namespace larder::scheduler {

std::int64_t TimeWindow::interval_at(double time_s) const {
    return static_cast<std::int64_t>(std::floor(time_s / interval_s));
}

void GpuTime::add(const TimeStretch& used, double gpus) {
    if (!(used.to_s > used.from_s)) return;
    const std::int64_t last = std::max(used.last, interval);
    const std::int64_t oldest = last - used.window.intervals + 1;
    std::int64_t begin = interval - static_cast<std::int64_t>(gpu_s_by_interval.size()) + 1;
    if (begin < oldest) {
        const auto forgotten = std::min<std::int64_t>(oldest - begin, std::ssize(gpu_s_by_interval));
        gpu_s_by_interval.erase(gpu_s_by_interval.begin(), gpu_s_by_interval.begin() + forgotten);
        begin = oldest;
    }
    const std::int64_t first = std::max(used.first, oldest);
    if (gpu_s_by_interval.empty()) begin = first;
    if (first < begin) {  // the clock was set back
        gpu_s_by_interval.insert(gpu_s_by_interval.begin(), static_cast<std::size_t>(begin - first), 0);
        begin = first;
    }
    gpu_s_by_interval.resize(static_cast<std::size_t>(last - begin + 1));
    interval = last;
    for (std::int64_t at = first; at <= used.last; ++at) {
        const double begins_s = static_cast<double>(at) * used.window.interval_s;
        const double ends_s = begins_s + used.window.interval_s;
        const double seconds = std::min(used.to_s, ends_s) - std::max(used.from_s, begins_s);
        gpu_s_by_interval[static_cast<std::size_t>(at - begin)] += std::max(0.0, seconds) * gpus;
    }
}

double GpuTime::sum(double now_s, const TimeWindow& window) const {
    const std::int64_t begin = interval - std::ssize(gpu_s_by_interval) + 1;
    const std::int64_t oldest = window.interval_at(now_s) - window.intervals + 1;
    double sum = 0;
    for (std::int64_t at = std::max(begin, oldest); at <= interval; ++at) {
        sum += gpu_s_by_interval[static_cast<std::size_t>(at - begin)];
    }
    return sum;
}

}  // namespace larder::scheduler
