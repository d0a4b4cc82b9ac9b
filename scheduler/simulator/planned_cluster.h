#pragma once

// Describes the simulated nodes, datasets and jobs as the daemon describes real ones to allocator::assign().

#include <map>

#include "allocator/state.h"
#include "scheduler/simulator/cache_system.h"

namespace larder::scheduler {

struct PlannedCluster {
    allocator::ClusterState state;                      // jobs: the readers, then those that wait for a turn
    std::map<std::uint32_t, std::uint32_t> dataset_at;  // by dataset of the workload: its index in the state

    // Replaces all of it; memory is reused. `own_caches`: each node caches for itself. If not, all nodes are one peer
    // group, and its cache is spread evenly over them.
    void describe(const ReadersState& readers, bool own_caches);

private:
    void describe_nodes(const ReadersState& readers, bool own_caches);
    void describe_datasets(const ReadersState& readers);
    void describe_jobs(const ReadersState& readers);
    void describe(const SimulatedReader& reader, const ReadersState& readers, allocator::ClusterJob& job) const;
};

}  // namespace larder::scheduler
