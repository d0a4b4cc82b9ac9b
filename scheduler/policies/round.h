#pragma once

// Turns shares of time into the jobs of the next round (Gavel, OSDI '20, section 5). The priority of a pair of job and
// type is its share over the share it had lately, and pairs are taken in that order while GPUs are left. Jobs keep
// their GPUs to the end of a round, by a lease. All rounds end together, so that large gangs are not passed over for
// ever. GPUs that the shares leave idle go to any job that can use them.

#include <span>
#include <vector>

#include "scheduler/policies/wants.h"

namespace larder::scheduler {

struct RoundJob {
    std::uint32_t job = 0;
    std::uint32_t gpus = 0;
    std::span<const double> parts;  // of the time, by type
};

// Adds the wishes for `jobs`, which may be stopped between rounds, after all jobs that may not be or are within a
// lease.
void want_round(const Snapshot& snapshot, std::span<const RoundJob> jobs, double round_s, Decision& decision);

}  // namespace larder::scheduler
