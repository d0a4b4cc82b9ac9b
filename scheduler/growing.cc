#include "scheduler/growing.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace larder::scheduler {
namespace {

struct Step {
    double gain = 0;  // relative gain in rate, per added GPU
    std::uint32_t added_gpus = 0;
    std::uint32_t index = 0;  // index in jobs

    bool operator<(const Step& other) const { return std::tuple(gain, other.index) < std::tuple(other.gain, index); }
};

// Returns the smallest number of added GPUs that raises the rate: on some scaling curves one more GPU adds nothing.
Step next_step(const Snapshot& snapshot, const Growing& growing, std::uint32_t index) {
    const JobState& job = *snapshot.jobs[growing.job];
    const double rate = expected_rate(snapshot, job, growing.gpu_type, growing.gpus);
    const std::uint32_t step = job.spec->gpus_step();
    for (std::uint32_t gpus = growing.gpus + step; gpus <= job.spec->gpus_max; gpus += step) {
        const double gain = expected_rate(snapshot, job, growing.gpu_type, gpus) / rate - 1;
        const std::uint32_t added_gpus = gpus - growing.gpus;
        if (gain > 1e-9) return {.gain = gain / added_gpus, .added_gpus = added_gpus, .index = index};
    }
    return {};
}

}  // namespace

void raise_all(const Snapshot& snapshot, std::span<std::uint32_t> left, std::vector<Growing>& jobs) {
    std::priority_queue<Step> steps;
    const auto push_next_step = [&](std::uint32_t index) {
        const Step step = next_step(snapshot, jobs[index], index);
        if (step.added_gpus > 0) steps.push(step);
    };
    for (std::uint32_t index = 0; index < jobs.size(); ++index) push_next_step(index);
    while (!steps.empty()) {
        const Step step = steps.top();
        steps.pop();
        Growing& growing = jobs[step.index];
        if (left[growing.gpu_type] < step.added_gpus) continue;
        left[growing.gpu_type] -= step.added_gpus;
        growing.gpus += step.added_gpus;
        push_next_step(step.index);
    }
}

void grow(const Snapshot& snapshot, std::span<std::uint32_t> left, std::vector<Growing>& jobs) {
    raise_all(snapshot, left, jobs);
    for (Growing& growing : jobs) {
        const JobState& job = *snapshot.jobs[growing.job];
        if (!job.running || growing.gpus <= job.gpus) continue;
        const double before = expected_rate(snapshot, job, job.gpu_type, job.gpus);
        const double after = expected_rate(snapshot, job, job.gpu_type, growing.gpus);
        const double change_s = (job.spec->resizable ? kResizePart : 1) * job.spec->restart_s;
        const bool is_worthwhile = gain_exceeds_restarts(before, after, job.remaining_bytes / before, change_s, 1);
        if (is_worthwhile && !job.resizing) continue;
        left[growing.gpu_type] += growing.gpus - job.gpus;
        growing.gpus = job.gpus;
    }
}

bool gain_exceeds_restarts(double rate_before, double rate_after, double horizon_s, double restart_s, int restarts) {
    if (horizon_s == kNever) return rate_after > rate_before;
    return (horizon_s - restarts * restart_s) * rate_after > horizon_s * rate_before;
}

}  // namespace larder::scheduler
