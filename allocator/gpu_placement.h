#pragma once

// Finds GPUs for a job that waits for them: of the candidate sets of free GPUs, the one with the best plan in the
// objective's own terms. Ties go to the set with which the job has the highest rate, then to the one with more of the
// job's data on its nodes, then to the one on fewer nodes, then to the one that leaves fewer GPUs over on them.
//
// The candidates are the nodes in a few orders (most of the job's data, most network, most disk, ...), and, on small
// clusters, sets made from these by moving GPUs between nodes. Trying a candidate means solving a whole plan, so the
// number of trials falls with the size of the cluster and the number of waiting jobs. A quick estimate from the
// candidate's own networks and disks chooses the candidates to try, and decides alone if there is no time for any
// trial.

#include <optional>
#include <vector>

#include "allocator/assign.h"

namespace larder::allocator {

// Returns nullopt if there are too few free GPUs, or if objective.placement_rules allow none of the sets tried: all
// sets on a small cluster, some thousands on a large one. The job's own placement in `state` is empty.
std::optional<GpuShares> place_job(const ClusterState& state, std::uint32_t job, const Objective& objective);

}  // namespace larder::allocator
