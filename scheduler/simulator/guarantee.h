#pragma once

// HiveD's promise, put to the test with a trace (HiveD, OSDI '20, section 6): no job of a tenant waits longer in the
// shared cluster, with its guaranteed cells, than it would in a cluster of just those, alone. Both are simulated under
// a queue per tenant; jobs keep their durations, so what differs is only where there was room.

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
    std::uint64_t jobs = 0;  // that its cells have room for at all
    std::uint64_t too_large = 0;
    std::uint64_t later = 0;  // started later than alone: violations
    // Started later, too, but because another job of the tenant had found room earlier than it would have alone, and
    // ran when this one's turn came: first come, first served is not monotone where gangs need whole cells (Graham
    // '69).
    std::uint64_t behind_earlier = 0;
    double waited_shared_s = 0;  // mean
    double waited_alone_s = 0;
};

// A cluster of one hierarchy (GPU, pair where nodes have an even number, node, rack of 4) that the workload's tenants
// own in whole nodes, by their weights; everybody has one. Only GPUs that make up whole racks count. invalid_argument:
// more tenants than nodes.
Result<CellConfig> cells_by_weight(std::span<const Tenant> tenants, const GpuGroup& gpus, std::uint32_t gpus_per_node);

// By tenant, of those that have cells. GPUs as the config has them; the workload is one for its types. `simulated`, if
// given, is told after each cluster how many of all have been simulated: the shared one, then each tenant's.
Result<std::vector<TenantGuarantee>> check_guarantee(
    const Workload& workload, const CellConfig& config,
    const std::function<void(std::size_t done, std::size_t all)>& simulated = {});

}  // namespace larder::scheduler
