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

// By how large a part `after` is better than `before`, in the objective's own terms.
double gain(const Problem& problem, ObjectiveKind kind, const Solution& before, const Solution& after);

// What all jobs take from the remote in the steady state.
double steady_remote(const Problem& problem, const Solution& solution);

}  // namespace larder::allocator
