#include "scheduler/policies/shortest.h"

#include <algorithm>

namespace larder::scheduler {

Result<Decision> Shortest::decide(const Snapshot& snapshot) {
    ranked_.clear();
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        const JobState& job = *snapshot.jobs[j];
        double key = remaining_with_restart_s(snapshot, job);
        if (job.running) {
            // Waiting jobs are assumed to get an equal share. A running job that the plan gives less would otherwise
            // lose to a waiting job, win against it once both wait, and the two would stop each other for ever.
            key = preempts_ ? std::min(key, remaining_if_waiting_s(snapshot, job)) : -1;
        }
        ranked_.push_back({.key = key, .job = j});
    }
    std::ranges::sort(ranked_);
    Decision decision;
    decision.wants.reserve(ranked_.size());
    for (const Ranked& ranked : ranked_) decision.wants.push_back(want_as_it_is(snapshot, ranked.job));
    return decision;
}

}  // namespace larder::scheduler
