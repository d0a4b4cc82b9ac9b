#include "scheduler/policies/edf.h"

#include <algorithm>

namespace larder::scheduler {

Result<Decision> Edf::decide(const Snapshot& snapshot) {
    ranked_.clear();
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        ranked_.push_back({.key = snapshot.jobs[j]->spec->deadline_s, .job = j});
    }
    std::ranges::sort(ranked_);
    Decision decision;
    decision.wants.reserve(ranked_.size());
    for (const Ranked& ranked : ranked_) decision.wants.push_back(want_as_it_is(snapshot, ranked.job));
    return decision;
}

}  // namespace larder::scheduler
