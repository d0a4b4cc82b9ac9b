#pragma once

// The rate that each running job would have under an equal share of everything: the allocator's own definition
// (allocator/problem.h), for every cache system. It does not depend on what a system has cached, nor on the epochs to
// go: the share of the cache counts as filled, also in a job's last epoch. Where disks or networks of nodes bind, each
// job has an equal share of them, too.

#include "allocator/state.h"
#include "scheduler/simulator/running_job.h"

namespace larder::scheduler {

class EqualShares {
public:
    EqualShares(const SimulationOptions& options, std::span<const DatasetState> datasets, std::size_t nodes);

    // Sets SimulatedReader::equal_rate of the running jobs, which all read a dataset, from their f*. `waiting`: the
    // jobs that wait for their next turns, which have a claim to cache.
    void set(double remote_bytes_per_second, std::span<SimulatedJob* const> running,
             std::span<SimulatedJob* const> waiting);

private:
    void add(const SimulatedJob& job, bool runs);

    std::span<const DatasetState> datasets_;
    bool by_node_;  // if not, all nodes are one
    allocator::ClusterState state_;
    std::vector<std::uint32_t> index_of_;  // in state_.datasets, by dataset
};

}  // namespace larder::scheduler
