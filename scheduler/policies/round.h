#pragma once

// Turns shares of time into the jobs of the next round (Gavel, OSDI '20, section 5). A pair of a job and a type has a
// priority: the job's share of time on the type over the share that it had lately. Pairs are taken by priority while
// GPUs are left. Jobs keep their GPUs to the end of a round, by a lease. All rounds end together, so that large gangs
// are not passed over for ever. GPUs that the shares leave idle go to any job that can use them.
//
// Where shares have pairs, as many GPUs of a round as the shares say are shared by two jobs. A job that is taken then
// runs alone, or beside the first job by priority of a kind that the shares pair it with. Fractions of a GPU are
// rounded up in as many rounds as they should.

#include <span>
#include <vector>

#include "scheduler/policies/shares.h"
#include "scheduler/policies/wants.h"

namespace larder::scheduler {

struct RoundJob {
    std::uint32_t job = 0;
    std::uint32_t gpus = 0;
    std::span<const double> parts;  // of the time, by type
};

// What rounds must know to let jobs share GPUs.
struct PackedShares {
    const Shares* shares = nullptr;
    std::span<const SharePair> pairs;        // of the shares; empty: no job shares
    std::span<const std::uint32_t> kind_of;  // by job of the snapshot: its group in the shares
};

// Adds wishes: first for all jobs that may not be stopped or are within a lease, then for `jobs`, which may be stopped
// between rounds.
void want_round(const Snapshot& snapshot, std::span<const RoundJob> jobs, double round_s, Decision& decision,
                const PackedShares& packed = {});

}  // namespace larder::scheduler
