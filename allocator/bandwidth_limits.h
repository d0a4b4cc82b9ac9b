#pragma once

// Turns operators' limits on jobs' bandwidth into limits on the split of cache. A job with a cap reaches a rate only if
// enough of its dataset is cached: at given rates a cap is a lower bound on cache. A job with a floor keeps that much
// of the remote even if it needs less, so more cache saves nothing once its misses are below the floor. The result is
// exact for a job within one peer group. A job that runs in several groups is assumed to need cache in the proportions
// of its equal share.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "allocator/problem.h"

namespace larder::allocator {

// Each of the first `up_to_bytes` of a cache saves `density` remote bytes per second.
struct Saving {
    std::uint32_t cache = 0;
    double up_to_bytes = 0;
    double density = 0;
};

// Returns the bytes each cache must hold, as far as it can, for capped jobs to read at these rates. The result is by
// index in Problem::caches, `rates` by index in Problem::jobs. Empty if no job has limits.
std::vector<double> least_cache(const Problem& problem, std::span<const double> rates);

// True if the job (an index in Problem::jobs) has a floor, and more cache can bring its misses below that floor.
inline bool has_floor(const Problem& problem, std::size_t job) {
    return problem.gains_of_kept[job] > 0 && problem.bandwidth_floors[job] > 0;
}

// Returns the savings of the jobs with floors, at these rates. Adds to `more_if_kept`, by cache, what each byte that is
// cached now saves beyond these, in remote bytes per second for the whole cache.
std::vector<Saving> savings_with_floors(const Problem& problem, std::span<const double> rates,
                                        std::span<double> more_if_kept);

// Cuts each cache into pieces of equal density, its last bytes first: bytes below `up_to_bytes` save at least
// `density`. By cache, any byte saves `density` for jobs without floors, and a byte that is cached now saves `kept`
// more; `savings` are those of the others. Pieces that save nothing or have no bytes are left out.
std::vector<Saving> pieces_of(const Problem& problem, std::span<const double> density, std::span<const double> kept,
                              std::vector<Saving> savings);

// Returns the highest rate that the cap of job `index` (in Problem::jobs) allows with all cache that can be cached.
double highest_rate(const Problem& problem, std::size_t index);

// Returns the largest factor by which a job's need exceeds its cap at these rates; 0 if all caps allow the rates.
// `parts` are what the caches hold, by index in Problem::caches.
double largest_cap_excess(const Problem& problem, std::span<const double> rates, std::span<const CachedPart> parts);

}  // namespace larder::allocator
