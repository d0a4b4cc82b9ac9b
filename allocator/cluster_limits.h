#pragma once

// Bounds on the jobs' rates once the place of cache is known: the remote, each node's network in and out, each node's
// disk. Nodes that can carry the highest possible demand of their jobs and their cache are left out. That spares most
// nodes; every other node costs a few terms for each job that runs there or whose data it caches.

#include <span>
#include <vector>

#include "allocator/problem.h"
#include "allocator/rate_limits.h"

namespace larder::allocator {

// `hit_ratios` are by index in Problem::jobs, `quotas` by dataset. The bounds hold for rates up to Problem::ideals.
RateLimits cluster_limits(const ClusterState& state, const Problem& problem, std::span<const double> hit_ratios,
                          std::span<const std::vector<NodeCache>> quotas);

}  // namespace larder::allocator
