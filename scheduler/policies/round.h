#pragma once

// Turns shares of time into the jobs of the next round (Gavel, OSDI '20, section 5). A pair of a job and a type has a
// priority: the job's share of time on the type over the share that it had lately. Pairs are taken by priority while
// GPUs are left. Jobs keep their GPUs to the end of a round, by a lease. All rounds end together, so that large gangs
// are not passed over for ever. GPUs that the shares leave idle go to any job that can use them.
//
// Shares may have pairs of kinds of jobs. A round lets two jobs share as many GPUs as the shares say. A job that is
// taken then runs alone, or beside another job of a kind that the shares pair it with, the first by priority. A
// fraction of a GPU is a whole GPU in that fraction of the rounds.

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

// The shares by which rounds let jobs share GPUs.
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
