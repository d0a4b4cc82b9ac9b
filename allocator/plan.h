#pragma once

// The result of assign(): cache quotas per dataset, node and tier, remote bandwidth per job, and GPUs for jobs that
// waited for some, with the model's predictions. Indices are those of the ClusterState the plan was made from.

#include <cstdint>
#include <vector>

#include "allocator/state.h"

namespace larder::allocator {

struct DatasetPlan {
    std::uint64_t quota_bytes = 0;  // over all nodes
    std::vector<NodeCache> quotas;  // by node
};

struct JobPlan {
    bool running = false;                     // has GPUs; all below is 0 otherwise
    GpuShares found_placement;                // for a job that had none
    double bandwidth_bytes_per_second = 0;    // b: the grant
    double equal_share_bytes_per_second = 0;  // e: its rate from an equal share of everything
    // Predictions: with the present cache; and in the steady state, in which quotas fill as the job reads, averaged
    // over all that it has left to read. For a job that reads on for ever, quotas are filled.
    double hit_ratio = 0;
    double predicted_bytes_per_second = 0;
    double steady_hit_ratio = 0;
    double steady_bytes_per_second = 0;
};

struct Plan {
    std::vector<DatasetPlan> datasets;
    std::vector<JobPlan> jobs;
    double steady_remote_bytes_per_second = 0;  // the total that all jobs take in the steady state
    std::uint64_t moved_bytes = 0;              // bytes that nodes must fetch to fill the quotas
    bool kept_quotas = false;                   // true: moving cache would have gained too little
};

// Returns where a job runs under a plan for this state; empty if it waits.
inline const GpuShares& placement_of(const ClusterState& state, const Plan& plan, std::size_t job) {
    const GpuShares& found = plan.jobs[job].found_placement;
    return found.empty() ? state.jobs[job].placement : found;
}

}  // namespace larder::allocator
