#pragma once

// assign() gives cache, remote bandwidth and GPUs to jobs together, from the performance model
//
//     f = min(f*, b / (1 - h)),  h = cached / dataset size        (SiloD, EuroSys '23, section 4)
//
// bounded by each node's disk and network. Nodes of one peer group read each other's cache, so h counts the bytes that
// the job's groups hold, each group weighted by the part of the job that runs there. assign() is a pure function: the
// same state and objective give the same plan, whatever the order of the lists; no clock, no I/O, no randomness. The
// allocator's daemon, the simulator, the what-if command and the tests all call it. Any thread.
//
// Cache is chosen for the steady state (quotas filled). The choice is exact: each objective comes down to a fractional
// knapsack. Bandwidth is granted for the cache that can be hit now: a block admitted in this epoch helps a job only if
// the job has not read it yet. Disk and network bounds depend on where cache lies, and the placement of cache depends
// on the bounded rates. So assign() solves without the bounds, places the cache, bounds the rates, and repeats with the
// bounded rates as the jobs' ideals, at most three times. If several disk or network bounds bind at once, the sum of
// rates is no longer exactly the largest.
//
// If jobs take turns, the set of running jobs changes sooner than caches fill. So quotas are chosen for all jobs in the
// rotation (the running jobs and those that wait for their next turn), each as if it ran all the time at its time_share
// of f*. These quotas fit the average load and stay the same from turn to turn. Bandwidth is given to the jobs that run
// now, with those quotas. If a running job would then fall below its equal share, quotas move towards equal ones, as
// far as needed.

#include <span>

#include "allocator/plan.h"
#include "allocator/protocol/objective.h"
#include "allocator/state.h"

namespace larder::allocator {

// Says which sets of GPUs a job may be given. Guarantees (cells) constrain placements through this interface.
class PlacementRules {
public:
    virtual ~PlacementRules() = default;
    virtual bool allows(const ClusterState& state, std::uint32_t job, std::span<const GpuShare> placement) const = 0;
};

struct Objective {
    ObjectiveKind kind = ObjectiveKind::max_min;
    // Quotas stay as they are if new ones would improve the objective by less than this fraction.
    double hysteresis = 0.02;
    bool spare_room = false;  // give datasets without running jobs quotas from the spare cache (spare_room.h)
    bool place_jobs = true;   // find GPUs for jobs that have none
    const PlacementRules* placement_rules = nullptr;  // not owned; null: any free GPUs
};

// Errors: invalid_argument, from validate().
Result<Plan> assign(const ClusterState& state, const Objective& objective);

}  // namespace larder::allocator
