#pragma once

// What operators' limits on jobs' bandwidth ask of the split of cache. A job that may take no more than its cap reads
// at a rate only where enough of it is cached: at given rates a cap is a lower bound on cache. A job with a floor has
// that much of the remote whatever it hits, so cache saves nothing from where its misses come below the floor on.
// Exact for jobs within one peer group; one that runs in several is taken to need its equal share's proportions.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "allocator/problem.h"

namespace larder::allocator {

// Remote bytes per second that a byte of cache saves, up to so many bytes of it.
struct Saving {
    std::uint32_t cache = 0;
    double up_to_bytes = 0;
    double density = 0;
};

// By index in Problem::caches, what the caches must hold for capped jobs to read at these rates (by index in
// Problem::jobs), as far as a cache can; empty where no job has limits.
std::vector<double> least_cache(const Problem& problem, std::span<const double> rates);

// The floor of the job with this index in Problem::jobs may be more than it misses.
inline bool has_floor(const Problem& problem, std::size_t job) {
    return problem.gains[job] != 0 && problem.bandwidth_floors[job] > 0;
}

// What jobs with floors save at these rates; such jobs only.
std::vector<Saving> savings_with_floors(const Problem& problem, std::span<const double> rates);

// What each cache saves piece by piece, when any byte of it saves `density` besides.
std::vector<Saving> pieces_of(const Problem& problem, std::span<const double> density, std::vector<Saving> savings);

// The highest rate that a job's cap allows it when all that can be cached is. `index`: its own, in Problem::jobs.
double highest_rate(const Problem& problem, std::size_t index);

// By how many times a job needs more than its cap to read at these rates; 0 where all caps allow them.
// `ratios`: each cache's hit ratio, by index in Problem::caches.
double caps_exceeded(const Problem& problem, std::span<const double> rates, std::span<const double> ratios);

}  // namespace larder::allocator
