#pragma once

// One plan for jobs that all have their GPUs: cache split, its places, and rates from them.

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

// New quotas.
Solution solve(const ClusterState& state, const Problem& problem, ObjectiveKind kind);
// The quotas in force, with bandwidth given anew.
Solution solve_with_quotas(const ClusterState& state, const Problem& problem, ObjectiveKind kind,
                           std::vector<std::vector<NodeCache>> quotas);

// For those that run now, with quotas made for all who take turns: `averages`. These quotas may leave one that runs
// below its equal share; then they are moved towards equal ones as far as it takes.
Solution solve_in_turn(const ClusterState& state, const Problem& averages, const Problem& running, ObjectiveKind kind,
                       std::vector<std::vector<NodeCache>> quotas);
// Whether everybody comes to its equal share's rate.
bool shares_hold(const Problem& problem, const Solution& solution);

// By how large a part `after` is better than `before`, in the objective's own terms.
double gain(const Problem& problem, ObjectiveKind kind, const Solution& before, const Solution& after);

// What all jobs take from the remote in the steady state.
double steady_remote(const Problem& problem, const Solution& solution);

}  // namespace larder::allocator
