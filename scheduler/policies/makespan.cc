#include "scheduler/policies/makespan.h"

#include <algorithm>

namespace larder::scheduler {

double longest_remaining_bytes(const Snapshot& snapshot) {
    double longest = 1;
    for (const JobState* const job : snapshot.jobs) {
        if (job->remaining_bytes != kNever) longest = std::max(longest, job->remaining_bytes);
    }
    return longest;
}

void Makespan::set_terms(const Snapshot&, const JobState& job, double, std::span<double>,
                         std::span<double> terms) const {
    terms[0] = std::clamp(job.remaining_bytes, 1.0, longest_bytes_);
}

Result<Shares> Makespan::allocate(const Snapshot&, const Kinds& kinds) {
    std::vector<double> needs;
    needs.reserve(kinds.kinds.size());
    for (const Kind& kind : kinds.kinds) needs.push_back(kind.terms[0]);
    return shares_at_highest_level(kinds, needs);
}

}  // namespace larder::scheduler
