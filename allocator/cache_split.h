#pragma once

// How much cache each dataset gets in each peer group, for each objective. For given rates the least remote bandwidth
// is a fractional knapsack per group: a byte of cache of dataset i saves (sum of the rates its jobs read at there) /
// size_i, so the densest first is exact. The objectives differ in the rates they give it.

#include <span>
#include <vector>

#include "allocator/problem.h"

namespace larder::allocator {

// Bytes, by index in Problem::caches.
using CacheSplit = std::vector<double>;

// Least remote bandwidth at f*; where the remote is too slow for that, the least that leaves everybody able to reach an
// equal share's rate.
CacheSplit efficiency_split(const Problem& problem);

// The split that lets the smallest rate / (weight * equal share) be largest (SiloD, section 5.2, by bisection).
CacheSplit max_min_split(const Problem& problem);

// The split with the largest sum of rates that was found: alternating rates and cache from several starts.
CacheSplit throughput_split(const Problem& problem);

// The same for the rates' value, from fewer starts: it is for plans that are made often.
CacheSplit utilisation_split(const Problem& problem);

CacheSplit equal_split(const Problem& problem);
// This split, moved towards the equal one as far as everybody needs to be able to reach an equal share's rate.
CacheSplit towards_equal_split(const Problem& problem, const CacheSplit& split);
CacheSplit pinned_split(const Problem& problem);

}  // namespace larder::allocator
