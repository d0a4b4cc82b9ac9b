#include "allocator/bandwidth_limits.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>
#include <utility>

#include "allocator/model.h"

namespace larder::allocator {
namespace {

constexpr double kRounding = 1e-9;

bool cache_relieves_cap(const Problem& problem, std::size_t job) {
    return problem.gains_of_kept[job] > 0 && std::isfinite(problem.bandwidth_caps[job]);
}

}  // namespace

std::vector<double> least_cache(const Problem& problem, std::span<const double> rates) {
    if (!problem.limits_bandwidth) return {};
    std::vector<double> equal_bytes;
    equal_bytes.reserve(problem.caches.size());
    for (const GroupCache& cache : problem.caches) equal_bytes.push_back(cache.equal_cache);
    const std::vector<CachedPart> equal_parts = problem.cached_parts(equal_bytes);
    std::vector<double> least(problem.caches.size());
    for (std::size_t j = 0; j < rates.size(); ++j) {
        const double cap = problem.bandwidth_caps[j];
        if (!cache_relieves_cap(problem, j) || rates[j] <= cap) continue;
        const double hits = 1 - cap / rates[j];
        const std::span<const Read> reads = problem.reads_of(j);
        const double hits_at_equal_share = problem.steady_hit_ratio(j, equal_parts);
        for (const Read& read : reads) {
            const GroupCache& cache = problem.caches[read.cache];
            const bool in_several_groups = reads.size() > 1 && hits_at_equal_share > 0;
            const double bytes =
                in_several_groups ? cache.equal_cache * hits / hits_at_equal_share : problem.bytes_for(j, cache, hits);
            least[read.cache] = std::max(least[read.cache], std::min(bytes, cache.cap));
        }
    }
    return least;
}

std::vector<Saving> savings_with_floors(const Problem& problem, std::span<const double> rates,
                                        std::span<double> more_if_kept) {
    std::vector<Saving> savings;
    savings.reserve(problem.reads.size());
    for (std::size_t j = 0; j < rates.size(); ++j) {
        const double floor = problem.bandwidth_floors[j];
        if (!has_floor(problem, j) || rates[j] <= floor) continue;
        for (const Read& read : problem.reads_of(j)) {
            const GroupCache& cache = problem.caches[read.cache];
            const double reads = read.part * rates[j];
            const double added = problem.gains_of_added[j];
            const double kept = std::max(added, problem.gains_of_kept[j]);
            const double up_to_bytes = problem.bytes_for(j, cache, 1 - floor / rates[j]);
            // Jobs that save beyond the cached bytes save more on all of these: one sum for the cache stands for them.
            const bool ends_cached = up_to_bytes <= cache.cached;
            if (!ends_cached) more_if_kept[read.cache] += reads * (kept - added);
            savings.push_back({.cache = read.cache,
                               .up_to_bytes = up_to_bytes,
                               .density = reads * (ends_cached ? kept : added) / cache.size});
        }
    }
    return savings;
}

namespace {

// Sorts savings by cache. Those of jobs that run in one group each are in this order already.
std::vector<Saving> by_cache(std::vector<Saving> savings, std::size_t caches) {
    if (std::ranges::is_sorted(savings, {}, &Saving::cache)) return savings;
    std::vector<std::uint32_t> next(caches + 1);
    for (const Saving& saving : savings) ++next[saving.cache + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    std::vector<Saving> sorted(savings.size());
    for (const Saving& saving : savings) sorted[next[saving.cache]++] = saving;
    return sorted;
}

}  // namespace

std::vector<Saving> pieces_of(const Problem& problem, std::span<const double> density, std::span<const double> kept,
                              std::vector<Saving> savings) {
    savings = by_cache(std::move(savings), density.size());
    const auto ends_earlier = [](const Saving& a, const Saving& b) {
        return a.up_to_bytes != b.up_to_bytes ? a.up_to_bytes < b.up_to_bytes : a.density > b.density;
    };
    std::vector<Saving> pieces;
    pieces.reserve(2 * density.size() + savings.size());
    auto begin = savings.begin();
    for (std::uint32_t i = 0; i < density.size(); ++i) {
        const auto end = std::find_if(begin, savings.end(), [i](const Saving& saving) { return saving.cache != i; });
        const std::span of_cache(begin, end);
        begin = end;
        // A dataset's jobs are listed slowest first. At equal floors, the savings of slower jobs end earlier.
        if (!std::ranges::is_sorted(of_cache, ends_earlier)) std::ranges::sort(of_cache, ends_earlier);
        // The cache's last bytes save only for jobs without a floor.
        Saving piece{.cache = i, .up_to_bytes = problem.caches[i].cap, .density = density[i]};
        const auto add = [&](double up_to_bytes, double more) {
            if (up_to_bytes < piece.up_to_bytes) {
                if (piece.density > 0) pieces.push_back(piece);
                piece.up_to_bytes = up_to_bytes;
            }
            piece.density += more;
        };
        const double cached = problem.caches[i].cached;
        bool counts_kept = cached > 0 && kept[i] > 0;
        for (const Saving& saving : of_cache | std::views::reverse) {
            if (counts_kept && saving.up_to_bytes <= cached) {
                add(cached, kept[i]);
                counts_kept = false;
            }
            add(saving.up_to_bytes, saving.density);
        }
        if (counts_kept) add(cached, kept[i]);
        if (piece.density > 0) pieces.push_back(piece);
    }
    return pieces;
}

double highest_rate(const Problem& problem, std::size_t index) {
    const double cap = problem.bandwidth_caps[index];
    const double ideal = problem.ideals[index];
    if (std::isinf(cap)) return ideal;
    double kept = 0;
    double added = 0;
    for (const Read& read : problem.reads_of(index)) {
        const GroupCache& cache = problem.caches[read.cache];
        const CachedPart most = cache.part(std::min(cache.cap, problem.group_bytes[cache.group]));
        kept += read.part * most.kept;
        added += read.part * most.added;
    }
    const double hits = kept * problem.gains_of_kept[index] + added * problem.gains_of_added[index];
    return predicted_rate(ideal, cap, std::min(1.0, hits));
}

double largest_cap_excess(const Problem& problem, std::span<const double> rates, std::span<const CachedPart> parts) {
    double most = 0;
    if (!problem.limits_bandwidth) return most;
    for (std::size_t j = 0; j < rates.size(); ++j) {
        if (!cache_relieves_cap(problem, j)) continue;
        const double misses = rates[j] * (1 - problem.steady_hit_ratio(j, parts));
        const double cap = problem.bandwidth_caps[j];
        if (misses > cap * (1 + kRounding)) most = std::max(most, misses / cap);
    }
    return most;
}

}  // namespace larder::allocator
