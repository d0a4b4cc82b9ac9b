#pragma once

// What bounds the jobs' rates once it is known where cache lies: the remote, each node's network in and out, each
// node's disk. Nodes that can carry all that their jobs and their cache could ever be asked for are left out: most are,
// and the others' bounds are many, a few for each job and each node that caches what it reads.

#include <span>
#include <vector>

#include "allocator/problem.h"
#include "allocator/rate_limits.h"

namespace larder::allocator {

// `hit_ratios` by index in Problem::jobs, `quotas` by dataset. Good for rates of at most Problem::ideals.
RateLimits cluster_limits(const ClusterState& state, const Problem& problem, std::span<const double> hit_ratios,
                          std::span<const std::vector<NodeCache>> quotas);

}  // namespace larder::allocator
