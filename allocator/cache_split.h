#pragma once

// Decides how much cache each dataset gets in each peer group, for each objective. At given rates, the least remote
// bandwidth is a fractional knapsack per group: a byte of cache of dataset i saves (sum of the rates at which the
// group's ranks read i) / size_i, so filling the densest first is exact. The objectives differ in the rates they use.

#include <span>
#include <vector>

#include "allocator/problem.h"

namespace larder::allocator {

// Bytes, by index in Problem::caches.
using CacheSplit = std::vector<double>;

// Returns the split that needs the least remote bandwidth at f*, of the splits that let every job reach its equal
// share's rate.
CacheSplit efficiency_split(const Problem& problem);

// Returns the split that makes the smallest rate / (weight * equal share) as large as possible (SiloD, section 5.2, by
// bisection).
CacheSplit max_min_split(const Problem& problem);

// Returns the split with the largest sum of rates found by alternating rates and cache from several starts.
CacheSplit throughput_split(const Problem& problem);

// Does the same from fewer starts, for plans that are made often. Rates count by JobTerms::value.
CacheSplit utilisation_split(const Problem& problem);

CacheSplit equal_split(const Problem& problem);
// Returns `split` moved towards the equal one, only as far as needed to let every job reach its equal share's rate.
CacheSplit towards_equal_split(const Problem& problem, const CacheSplit& split);
CacheSplit pinned_split(const Problem& problem);

}  // namespace larder::allocator
