#pragma once

// Chooses the nodes, and the tiers there, where each dataset's cache lies. Cached bytes stay where they are. More cache
// goes to the nodes where the dataset's jobs run, then to the nodes with most room in the group. The dataset whose
// cached bytes save the most remote bandwidth each chooses first, memory before disk.

#include <span>
#include <vector>

#include "allocator/cache_split.h"
#include "allocator/problem.h"

namespace larder::allocator {

// Returns quotas by dataset, each by node. `rates` (by index in Problem::jobs) give the datasets' densities.
std::vector<std::vector<NodeCache>> place_quotas(const ClusterState& state, const Problem& problem,
                                                 const CacheSplit& split, std::span<const double> rates);

// Returns the bytes of each cache under these quotas.
CacheSplit split_of(const Problem& problem, std::span<const std::vector<NodeCache>> quotas);

}  // namespace larder::allocator
