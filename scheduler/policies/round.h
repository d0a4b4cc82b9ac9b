#pragma once

// From shares of time to who runs in the next round (Gavel, OSDI '20, section 5): of each pair of job and type, the
// share it should have over the one it had lately is its priority, and pairs are taken in that order while GPUs are
// left. Jobs keep their GPUs to the end of a round, by a lease, and all rounds end together, so that large gangs are
// not passed over for ever; GPUs that the shares leave idle go to whoever can use them.

#include <span>
#include <vector>

#include "scheduler/policies/wants.h"

namespace larder::scheduler {

struct RoundJob {
    std::uint32_t job = 0;
    std::uint32_t gpus = 0;
    std::span<const double> parts;  // of the time, by type
};

// The wishes for `jobs`, which may be stopped between rounds, after all those that may not or are within a lease.
void want_round(const Snapshot& snapshot, std::span<const RoundJob> jobs, double round_s, Decision& decision);

}  // namespace larder::scheduler
