#pragma once

// GPUs for a job that waits for some: of the sets of free GPUs that come into question, the one with which the whole
// plan gives the job the highest rate. Where rates tie, the one with more of the job's data on its nodes, then the one
// on fewer nodes, then the one that leaves fewer GPUs over on them.
//
// Which sets come into question: the nodes in a few orders (most of the job's data, most network, most disk, ...), and
// on small clusters what moving GPUs between nodes makes of those. Each costs solving a whole plan, so their number
// falls with the size of the cluster and the number of jobs that wait; an estimate from the job's own nodes decides
// which are tried, and alone decides where there is no time for any.

#include <optional>
#include <vector>

#include "allocator/assign.h"

namespace larder::allocator {

// Nothing when there are too few free GPUs, or when objective.placement_rules allow none of the sets; of those all are
// asked on a small cluster, some thousands on a large one. The job's own placement in `state` is empty.
std::optional<Placement> place_job(const ClusterState& state, std::uint32_t job, const Objective& objective);

}  // namespace larder::allocator
