#pragma once

// Random clusters that are small enough for steady_optimum.h.

#include <cstdint>
#include <vector>

#include "allocator/protocol/objective.h"
#include "allocator/state.h"
#include "tests/oracle/random_state.h"

namespace larder::oracle {

// Up to 6 jobs, 4 datasets and 4 nodes with disks, networks and jobs with few epochs left. Half of the clusters have
// operators' limits, the other half several peer groups: the model leaves open how a limit is divided among groups.
inline allocator::ClusterState small_cluster(std::uint64_t seed) {
    test::RandomStateOptions options{.jobs_max = 6, .datasets_max = 4, .nodes_max = 4, .epochs = false};
    options.operator_limits = seed % 2 == 1;
    options.peer_groups = seed % 2 == 0;
    allocator::ClusterState state = test::RandomState(seed, options).make();
    if (seed % 4 < 2) {
        state.remote_bytes_per_second /= 8;
        for (allocator::ClusterJob& job : state.jobs) job.bandwidth_floor_bytes_per_second /= 8;
    }
    for (std::size_t j = 0; j < state.jobs.size(); ++j) {
        const std::uint64_t kind = (seed / 4 + j) % 10;
        if (kind == 0) state.jobs[j].remaining_epochs = 1;
        if (kind == 1) state.jobs[j].remaining_epochs = 2 + static_cast<double>(seed % 16) / 4;
    }
    return state;
}

// Returns each job's gain from a byte per second: the same for all jobs, or the GPUs that it keeps at work.
inline std::vector<double> values_of(const allocator::ClusterState& state, allocator::ObjectiveKind kind) {
    std::vector<double> values;
    values.reserve(state.jobs.size());
    for (const allocator::ClusterJob& job : state.jobs) {
        const double of_gpus = job.weight * job.gpus / job.ideal_bytes_per_second;
        values.push_back(kind == allocator::ObjectiveKind::utilisation ? of_gpus : 1);
    }
    return values;
}

}  // namespace larder::oracle
