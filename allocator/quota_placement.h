#pragma once

// On which nodes, and in which tier there, each dataset's cache lies. What is cached stays where it is; more goes to
// the nodes where the dataset's jobs run, then to those of the group with most room. The densest dataset chooses first,
// memory before disk.

#include <span>
#include <vector>

#include "allocator/cache_split.h"
#include "allocator/problem.h"

namespace larder::allocator {

// Quotas by dataset, each by node. `rates` (by index in Problem::jobs) say how dense a dataset is.
std::vector<std::vector<NodeCache>> place_quotas(const ClusterState& state, const Problem& problem,
                                                 const CacheSplit& split, std::span<const double> rates);

// How much of each cache such quotas come to.
CacheSplit split_of(const Problem& problem, std::span<const std::vector<NodeCache>> quotas);

}  // namespace larder::allocator
