#include "scheduler/policies/wants.h"

#include <algorithm>
#include <cmath>

namespace larder::scheduler {

std::uint32_t gpus_asked(const Snapshot& snapshot, const JobSpec& job) {
    std::uint32_t most = 0;
    for (std::uint32_t type = 0; type < snapshot.gpu_types.size(); ++type) {
        if (may_run_on(job, type)) most = std::max(most, snapshot.gpu_types[type].gpus);
    }
    return most >= job.gpus_min ? job.usable_of(std::min(job.gpus, most)) : job.gpus;
}

Want want_as_it_is(const Snapshot& snapshot, std::uint32_t job) {
    const JobState& state = *snapshot.jobs[job];
    Want want;
    want.job = job;
    want.gpus = state.running ? state.gpus : gpus_asked(snapshot, *state.spec);
    want.gpu_type = state.spec->gpu_type;
    return want;
}

double remaining_with_restart_s(const Snapshot& snapshot, const JobState& job) {
    const double remaining_s = expected_remaining_s(snapshot, job);
    const bool starts_again = !job.running && job.first_started_s != kNever;
    return starts_again ? remaining_s + job.spec->restart_s : remaining_s;
}

double period_end_s(double now_s, double period_s) {
    // Rounding may put a decision for a boundary slightly before it.
    return (std::floor(now_s / period_s + 1e-9) + 1) * period_s;
}

}  // namespace larder::scheduler
