#pragma once

// Solves one plan for jobs that all have GPUs: cache split, cache placement, and the resulting rates.

#include <vector>

#include "allocator/assign.h"
#include "allocator/problem.h"

namespace larder::allocator {

struct Solution {
    std::vector<std::vector<NodeCache>> quotas;  // by dataset
    // By index in Problem::jobs.
    std::vector<double> steady_hit_ratios;
    std::vector<double> steady_rates;
    std::vector<double> rates;
    std::vector<double> bandwidths;
};

// Chooses new quotas.
Solution solve(const ClusterState& state, const Problem& problem, ObjectiveKind kind);
// Keeps these quotas, and only grants bandwidth.
Solution solve_with_quotas(const ClusterState& state, const Problem& problem, ObjectiveKind kind,
                           std::vector<std::vector<NodeCache>> quotas);

// Solves for the running jobs, with quotas made for all jobs that take turns (`averages`). If these quotas leave a
// running job below its equal share, they move towards equal ones as far as needed.
Solution solve_for_rotation(const ClusterState& state, const Problem& averages, const Problem& running,
                            ObjectiveKind kind, std::vector<std::vector<NodeCache>> quotas);
// True if every job reaches its equal share's rate.
bool reaches_equal_shares(const Problem& problem, const Solution& solution);

// Returns the fraction by which `after` is better than `before`, in the objective's own terms.
double gain(const Problem& problem, ObjectiveKind kind, const Solution& before, const Solution& after);

// Returns the remote bytes per second of all jobs in the steady state.
double steady_remote(const Problem& problem, const Solution& solution);

}  // namespace larder::allocator
