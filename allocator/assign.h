#pragma once

// assign() gives cache, remote bandwidth and GPUs to jobs together, from the performance model
//
//     f = min(f*, b / (1 - h)),  h = cached / dataset size        (SiloD, EuroSys '23, section 4)
//
// bounded by each node's disk and network. Nodes of one peer group read each other's cache, so h counts what the job's
// groups hold, each by the part of the job that runs there. It is a pure function: the same state and objective give
// the same plan, whatever the order of the lists; no clock, no I/O, no randomness. The allocator's daemon, the
// simulator, the what-if command and the tests all call it. Any thread.
//
// Cache is chosen for the steady state (quotas filled), exactly, as the fractional knapsack the objective comes down
// to. Bandwidth is granted for what can be hit now: a block admitted in this epoch helps a job only where the job has
// not read it yet. Disk and network bounds depend on where cache lies, which depends on the rates they bound: assign
// solves with the bounds left out, places the cache, bounds the rates, and repeats with the bounded rates as the jobs'
// ideals, three times at most. Where several of those bounds bind at once the sum of rates is no longer exactly the
// largest.
//
// Where jobs take turns, who runs changes sooner than caches fill. So quotas are chosen for all who are in the rotation
// (the running jobs and those that wait for their next turn), each as if it ran all the time at its time_share of f*:
// a plan of averages, which turns do not change. Bandwidth is given to those that run now, with those quotas. Where
// that would leave one of these below its equal share, quotas are moved towards equal ones, as far as it takes.

#include <span>

#include "allocator/plan.h"
#include "allocator/state.h"

namespace larder::allocator {

enum class ObjectiveKind : std::uint8_t {
    efficiency,    // least remote bandwidth with every job at f*; where that is too much, then most total throughput
    max_min,       // the smallest rate over weight and equal share as large as can be, then the next smallest
    throughput,    // the largest sum of rates
    utilisation,   // the largest sum of GPUs at work: weight * GPUs * rate / f*
    equal_shares,  // the baseline: everyone an equal part of cache and bandwidth ("static")
    pinned,        // quotas and bandwidth as the operator's floors say, the rest of the bandwidth in equal parts
};

// Which sets of GPUs a job may be given; guarantees (cells) constrain placements through this.
class PlacementRules {
public:
    virtual ~PlacementRules() = default;
    virtual bool allows(const ClusterState& state, std::uint32_t job, std::span<const GpuShare> placement) const = 0;
};

struct Objective {
    ObjectiveKind kind = ObjectiveKind::max_min;
    // Quotas stay as they are when new ones would improve the objective by less than this part of it.
    double hysteresis = 0.02;
    bool spare_room = false;  // quotas for datasets without running jobs too, from what is left (spare_room.h)
    bool place_jobs = true;   // find GPUs for jobs that have none
    const PlacementRules* placement_rules = nullptr;  // not owned; null: whatever is free
};

// Errors: invalid_argument, as validate() has it.
Result<Plan> assign(const ClusterState& state, const Objective& objective);

}  // namespace larder::allocator
