#pragma once

// GPUs for a job that waits for some: of the sets of free GPUs that come into question, the one with which the whole
// plan gives the job the highest rate. Where rates tie, the one with more of the job's data on its nodes, then the one
// on fewer nodes.

#include <optional>
#include <vector>

#include "allocator/assign.h"

namespace larder::allocator {

// Nothing when no allowed set of free GPUs is large enough. The job's own placement in `state` is empty.
std::optional<std::vector<GpuShare>> place_job(const ClusterState& state, std::uint32_t job,
                                               const Objective& objective);

}  // namespace larder::allocator
