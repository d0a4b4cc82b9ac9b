#pragma once

// What assign() decides: cache quotas per dataset, node and tier, remote bandwidth per job, and GPUs for jobs that
// waited for some; with what the model predicts of it. Indices are those of the ClusterState it was made from.

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
    Placement found_placement;                // for a job that had none
    double bandwidth_bytes_per_second = 0;    // b: the grant
    double equal_share_bytes_per_second = 0;  // e: what it would get of an equal share of everything
    // From the cache as it is now, and as it will be when the quotas are filled and every epoch began after that.
    double hit_ratio = 0;
    double predicted_bytes_per_second = 0;
    double steady_hit_ratio = 0;
    double steady_bytes_per_second = 0;
};

struct Plan {
    std::vector<DatasetPlan> datasets;
    std::vector<JobPlan> jobs;
    double steady_remote_bytes_per_second = 0;  // what all jobs together then take
    std::uint64_t moved_bytes = 0;              // what the quotas ask nodes to fetch anew
    bool kept_quotas = false;                   // the gain of moving cache was too small
};

// Where a job runs under a plan for this state; empty: it waits.
inline const Placement& placement_of(const ClusterState& state, const Plan& plan, std::size_t job) {
    const Placement& found = plan.jobs[job].found_placement;
    return found.empty() ? state.jobs[job].placement : found;
}

}  // namespace larder::allocator
