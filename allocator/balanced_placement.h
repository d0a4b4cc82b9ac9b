#pragma once

// Places each dataset's cache where disks and networks can carry its reads. place_quotas() keeps cached bytes where
// they are and fills the nodes of the readers first, whatever their disks can do. If a node then binds,
// balanced_quotas() divides the same cache anew: densest datasets first, each over the tiers and nodes of its group so
// that the busiest disk or network is as little busy as possible.

#include <span>
#include <vector>

#include "allocator/cache_split.h"
#include "allocator/problem.h"

namespace larder::allocator {

// Returns how many placements may be tried, so that a plan takes about 10 ms more. The time of one grows with the
// caches times the nodes of their groups, and with the jobs.
int tries_in_time(const Problem& problem);

// Returns quotas by dataset, each by node: the split, placed for jobs that read at these rates (by index in
// Problem::jobs). Held quotas stay.
std::vector<std::vector<NodeCache>> balanced_quotas(const ClusterState& state, const Problem& problem,
                                                    const CacheSplit& split, std::span<const double> rates);

// Returns quotas with which the nodes can carry these rates, if it finds some, at little remote bandwidth. Bytes that
// no node can carry stay uncached, so that they come from the remote. Held quotas and floors stay.
std::vector<std::vector<NodeCache>> carrying_quotas(const ClusterState& state, const Problem& problem,
                                                    std::span<const double> rates);

}  // namespace larder::allocator
