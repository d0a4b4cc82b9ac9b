#pragma once

// Checks HiveD's guarantee with a trace (HiveD, OSDI '20, section 6): no job of a tenant waits longer in the shared
// cluster, with the tenant's guaranteed cells, than in a private cluster of just those cells. Both clusters are
// simulated with one queue per tenant. Jobs keep their durations, so only the available room differs.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "scheduler/cells/cell_config.h"
#include "scheduler/simulator/scenario.h"

namespace larder::scheduler {

struct TenantGuarantee {
    std::string tenant;
    std::uint32_t gpus = 0;
    std::uint64_t jobs = 0;  // jobs that fit the tenant's cells
    std::uint64_t too_large = 0;
    std::uint64_t later = 0;  // jobs that started later than alone: violations
    // Not counted in `later`: jobs that started later only because another job of the tenant had started earlier than
    // alone, and was still running. First come, first served is not monotone where gangs need whole cells (Graham '69).
    std::uint64_t behind_earlier = 0;
    double waited_shared_s = 0;  // mean over the jobs
    double waited_alone_s = 0;
};

// Returns a cluster of one hierarchy (GPU, pair if nodes have an even number of GPUs above 2, node, rack of 4 nodes).
// The workload's tenants own whole nodes of it by weight, at least one each. GPUs beyond whole racks are left out.
// invalid_argument: more tenants than nodes.
Result<CellConfig> cells_by_weight(std::span<const Tenant> tenants, const GpuGroup& gpus, std::uint32_t gpus_per_node);

// Returns one result for each tenant that has cells. The GPUs are those of the config; the workload must be made for
// their types. `simulated`, if given, is called each time a cluster has been simulated: first the shared cluster, then
// each tenant's.
Result<std::vector<TenantGuarantee>> check_guarantee(
    const Workload& workload, const CellConfig& config,
    const std::function<void(std::size_t done, std::size_t all)>& simulated = {});

}  // namespace larder::scheduler
