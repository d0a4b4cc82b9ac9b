#include "scheduler/policies/growing.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace larder::scheduler {
namespace {

struct Step {
    double gain = 0;  // of the rate that it has, by so many GPUs more
    std::uint32_t more = 0;
    std::uint32_t at = 0;  // in jobs

    bool operator<(const Step& other) const { return std::tuple(gain, other.at) < std::tuple(other.gain, at); }
};

// The fewest GPUs more that gain anything, as some scaling curves have steps.
Step next_step(const Snapshot& snapshot, const Growing& growing, std::uint32_t at) {
    const JobState& job = *snapshot.jobs[growing.job];
    const double rate = expected_rate(snapshot, job, growing.gpu_type, growing.gpus);
    for (std::uint32_t gpus = growing.gpus + 1; gpus <= job.spec->gpus_max; ++gpus) {
        const double gain = expected_rate(snapshot, job, growing.gpu_type, gpus) / rate - 1;
        const std::uint32_t more = gpus - growing.gpus;
        if (gain > 1e-9) return {.gain = gain / more, .more = more, .at = at};
    }
    return {};
}

}  // namespace

void grow(const Snapshot& snapshot, Room& room, std::vector<Growing>& jobs) {
    std::priority_queue<Step> steps;
    const auto line_up = [&](std::uint32_t at) {
        const Step step = next_step(snapshot, jobs[at], at);
        if (step.more > 0) steps.push(step);
    };
    for (std::uint32_t at = 0; at < jobs.size(); ++at) line_up(at);
    while (!steps.empty()) {
        const Step step = steps.top();
        steps.pop();
        Growing& growing = jobs[step.at];
        if (room.left(growing.gpu_type) < step.more) continue;
        room.take(growing.gpu_type, step.more);
        growing.gpus += step.more;
        line_up(step.at);
    }
    for (Growing& growing : jobs) {
        const JobState& job = *snapshot.jobs[growing.job];
        if (!job.running || growing.gpus <= job.gpus) continue;
        const double now_s = job.remaining_bytes / expected_rate(snapshot, job, job.gpu_type, job.gpus);
        const double grown_s = job.remaining_bytes / expected_rate(snapshot, job, job.gpu_type, growing.gpus);
        if (job.remaining_bytes == kNever || now_s > grown_s + job.spec->restart_s) continue;
        room.give_back(growing.gpu_type, growing.gpus - job.gpus);
        growing.gpus = job.gpus;
    }
}

}  // namespace larder::scheduler
