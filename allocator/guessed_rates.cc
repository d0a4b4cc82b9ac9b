#include "allocator/guessed_rates.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace larder::allocator {
namespace {

bool runs_on_guess(const ClusterJob& job) {
    return job.ideal_is_guess && !job.placement.empty();
}

// Returns by dataset the cached bytes that the quotas in force cover; 0 for datasets that no job with a known f* reads,
// and for those on which operators hold quotas.
std::vector<std::uint64_t> covered_bytes(const ClusterState& state) {
    std::vector<bool> is_read(state.datasets.size());
    for (const ClusterJob& job : state.jobs) {
        if (!job.ideal_is_guess && !job.waits_for_gpus()) is_read[job.dataset] = true;
    }
    std::vector<std::uint64_t> covered(state.datasets.size());
    std::vector<NodeCache> quota_of(state.nodes.size());  // of one dataset at a time
    for (std::size_t i = 0; i < covered.size(); ++i) {
        const ClusterDataset& dataset = state.datasets[i];
        if (!is_read[i] || !dataset.held.empty()) continue;
        for (const NodeCache& quota : dataset.quotas) quota_of[quota.node] = quota;
        for (const NodeCache& cached : dataset.cached) {
            covered[i] += std::min(cached.bytes(), quota_of[cached.node].bytes());
        }
        for (const NodeCache& quota : dataset.quotas) quota_of[quota.node] = {};
    }
    return covered;
}

}  // namespace

bool gives_cache_to_guesses(const ClusterState& state, const Plan& plan) {
    if (std::ranges::none_of(state.jobs, runs_on_guess)) return false;
    const std::vector<std::uint64_t> covered = covered_bytes(state);
    for (std::size_t i = 0; i < covered.size(); ++i) {
        if (plan.datasets[i].quota_bytes < covered[i]) return true;
    }
    return false;
}

ClusterState without_guesses(const ClusterState& state) {
    ClusterState known = state;
    std::erase_if(known.jobs, runs_on_guess);
    return known;
}

ClusterState with_cached_floors(const ClusterState& state, const Plan& of_known_jobs) {
    ClusterState floored = state;
    const std::vector<std::uint64_t> covered = covered_bytes(state);
    for (std::size_t i = 0; i < covered.size(); ++i) {
        floored.datasets[i].cached_floor_bytes = std::min(covered[i], of_known_jobs.datasets[i].quota_bytes);
    }
    return floored;
}

}  // namespace larder::allocator
