#pragma once

// Splits the cluster's cache. First it decides how much cache each dataset gets in each peer group, for each objective.
// At given rates, the least remote bandwidth is a fractional knapsack per group: a byte of cache of dataset i saves
// (sum of the rates at which the group's ranks read i) / size_i, so filling the densest first is exact. The rate of a
// job that ends counts in part, by the hits that it still gets (cache_gains() in model.h): a block that is cached
// already saves more than one that has yet to be read. The objectives differ in the rates they use.
//
// Then it chooses the nodes, and the tiers there, where each dataset's cache lies. Cached bytes stay where they are.
// More cache goes to the nodes where the dataset's jobs run, then to the nodes with most room in the group. The dataset
// whose cached bytes save the most remote bandwidth each chooses first, memory before disk.

#include <span>
#include <vector>

#include "allocator/problem.h"
#include "allocator/protocol/objective.h"

namespace larder::allocator {

// Bytes, by index in Problem::caches.
using CacheSplit = std::vector<double>;

// Returns `split` moved towards the equal one, only as far as needed to let every job reach its equal share's rate.
CacheSplit towards_equal_split(const Problem& problem, const CacheSplit& split);

// Returns the rate at which each byte of a cache is read once it is filled, if jobs read at these rates, by index in
// Problem::caches.
std::vector<double> reads_per_byte(const Problem& problem, std::span<const double> rates);

// Returns the split that is best by the objective.
CacheSplit split_for(const Problem& problem, ObjectiveKind kind);

// Returns quotas by dataset, each by node: the split that is best by the objective, placed. `rates` are as
// place_quotas() has them.
std::vector<std::vector<NodeCache>> choose_quotas(const ClusterState& state, const Problem& problem, ObjectiveKind kind,
                                                  std::span<const double> rates);

// Returns quotas by dataset, each by node. `rates` (by index in Problem::jobs) give the datasets' densities.
std::vector<std::vector<NodeCache>> place_quotas(const ClusterState& state, const Problem& problem,
                                                 const CacheSplit& split, std::span<const double> rates);

// Returns equal quotas, placed as Problem's equal rates assume: each dataset's cache in a group on all of its nodes, in
// memory and on disk, in proportion to their room. Held quotas stay where they are.
std::vector<std::vector<NodeCache>> equal_quotas(const ClusterState& state, const Problem& problem);

// Gives each cache that rounding left below its floor the bytes that it lacks, on nodes that have room.
void restore_floors(const ClusterState& state, const Problem& problem, std::vector<std::vector<NodeCache>>& quotas);

// Returns the bytes of each cache under these quotas.
CacheSplit split_of(const Problem& problem, std::span<const std::vector<NodeCache>> quotas);

}  // namespace larder::allocator
