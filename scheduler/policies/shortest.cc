#include "scheduler/policies/shortest.h"

#include <algorithm>

namespace larder::scheduler {

Result<Decision> Shortest::decide(const Snapshot& snapshot) {
    ranked_.clear();
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        const JobState& job = *snapshot.jobs[j];
        const bool stays = job.running && !preempts_;
        ranked_.push_back({.key = stays ? -1 : remaining_with_restart_s(snapshot, job), .job = j});
    }
    std::ranges::sort(ranked_);
    Decision decision;
    decision.wants.reserve(ranked_.size());
    for (const Ranked& ranked : ranked_) decision.wants.push_back(want_as_it_is(snapshot, ranked.job));
    return decision;
}

}  // namespace larder::scheduler
