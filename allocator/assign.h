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
// Cache is chosen for the steady state: quotas fill as jobs read, and a job that ends soon gains less by cache than one
// that reads on (cache_gains() in model.h). The choice is exact: each objective comes down to a fractional knapsack.
// Bandwidth is granted for the cache that can be hit now: a block admitted in this epoch helps a job only if the job
// has not read it yet. Disk and network bounds depend on where cache lies, and the placement of cache depends on the
// bounded rates. So assign() solves without the bounds, places the cache and bounds the rates. If a node binds, it
// searches: it looks for rates that the nodes can carry (balanced_placement.h), level by level or job by job, and
// solves again with the bounded rates as the jobs' ideals, at most three times. In small clusters, linear programs look
// for them (quota_program.h). The best solution is taken. A max-min level is then exact in small clusters. Else, plans
// are near the best, and `larder bench optimum` measures how near. If the best solution leaves a job below its equal
// share, nodes that are too slow for what lies on them exchange cache with others (node_relief.h). If that is not
// enough, quotas move towards equal ones, spread over all nodes of a group, as far as needed. The best solution that
// leaves no job below its equal share is taken if it is better than that.
//
// Jobs may belong to users. Each user is guaranteed a fair share of the bandwidth first (user_shares.h). Without users
// the objective divides everything.
//
// A new job whose f* is only assumed takes no cached bytes from datasets that other jobs read (guessed_rates.h).
//
// If jobs take turns, the set of running jobs changes sooner than caches fill. So quotas are chosen for all jobs in the
// rotation (the running jobs and those that wait for their next turn), each as if it ran all the time at its time_share
// of f*. These quotas fit the average load and stay the same from turn to turn. Bandwidth is given to the jobs that run
// now, with those quotas. If a running job would then fall below its equal share, quotas move towards equal ones, as
// far as needed.

#include <span>
#include <vector>

#include "allocator/plan.h"
#include "allocator/protocol/objective.h"
#include "allocator/rate_limits.h"
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
    Effort effort = Effort::thorough;
    // Quotas stay as they are if new ones would improve the objective by less than this fraction.
    double hysteresis = 0.02;
    bool spare_room = false;  // give datasets without running jobs quotas from the spare cache (give_spare_room)
    bool place_jobs = true;   // find GPUs for jobs that have none
    const PlacementRules* placement_rules = nullptr;  // not owned; null: any free GPUs
};

// Errors: invalid_argument, from validate().
Result<Plan> assign(const ClusterState& state, const Objective& objective);

// --- the steps of assign(), for place_job() and tests

struct Problem;

struct Solution {
    std::vector<std::vector<NodeCache>> quotas;  // by dataset
    // Each vector is indexed as Problem::jobs.
    std::vector<double> steady_hit_ratios;
    std::vector<double> steady_rates;
};

// Solves one plan for jobs that all have GPUs: cache split, cache placement, and the resulting rates. Where disks or
// networks bind, jobs may be below their equal shares.
Solution solve(const ClusterState& state, const Problem& problem, ObjectiveKind kind, Effort effort);
// Returns the solution with its quotas moved, as far as needed to let every job reach its equal share's rate: off nodes
// that are too slow, or else towards equal quotas.
Solution towards_equal_quotas(const ClusterState& state, const Problem& problem, ObjectiveKind kind, Effort effort,
                              Solution solution);

// The value of a plan in its objective's own terms, to compare plans for the same jobs at different places.
struct PlanValue {
    std::vector<double> ratios;  // of max_min: each job's rate / (weight * f*), ascending; else empty
    double sum = 0;              // of the jobs' rates, each times its value to the objective
    double ideal = 0;            // what `job` would add to the sum at f*

    // True if this plan is better by more than the fraction `least`: of a ratio, or of what the job would add at f*.
    bool better_than(const PlanValue& other, double least) const;
};
PlanValue plan_value(const ClusterState& state, const Problem& problem, ObjectiveKind kind, const Solution& solution,
                     std::uint32_t job);
// Solves one plan like solve(), but does not look for better quotas where nodes bind. `job` has GPUs.
PlanValue quick_plan_value(const ClusterState& state, ObjectiveKind kind, std::uint32_t job);

// Gives the room that a plan leaves over to the datasets that no job reads at present: their cached blocks stay, they
// can be warmed, and their next job finds its quota in place. This costs no remote byte: nothing is fetched for a quota
// alone, and the next plan takes the room back at once. Deals out each node's spare memory, then disk, in equal parts
// among the node's datasets without running jobs, within their sizes and caps. A dataset is on a node if it has a quota
// there in `state`, even 0.
void give_spare_room(const ClusterState& state, Plan& plan);

// Returns `state` with the quotas of unread datasets cut to their cached bytes, so that room that was spare before is
// no reason to keep the old quotas.
ClusterState without_spare_room(const ClusterState& state);

}  // namespace larder::allocator
