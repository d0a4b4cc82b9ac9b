#include "allocator/bandwidth_limits.h"

#include <algorithm>
#include <cmath>

#include "allocator/model.h"

namespace larder::allocator {
namespace {

constexpr double kRounding = 1e-9;

bool has_cap(const JobTerms& job) {
    return job.gains && std::isfinite(job.bandwidth_cap);
}

}  // namespace

std::vector<double> least_cache(const Problem& problem, std::span<const double> rates) {
    if (!problem.limits_bandwidth) return {};
    std::vector<double> least(problem.caches.size());
    for (std::size_t j = 0; j < rates.size(); ++j) {
        const JobTerms& job = problem.jobs[j];
        if (!has_cap(job) || rates[j] <= job.bandwidth_cap) continue;
        const double hits = 1 - job.bandwidth_cap / rates[j];
        const std::span<const Read> reads = problem.reads_of(job);
        double equal_hits = 0;
        for (const Read& read : reads) {
            const GroupCache& cache = problem.caches[read.cache];
            equal_hits += read.part * hit_ratio(cache.equal_cache, cache.size);
        }
        for (const Read& read : reads) {
            const GroupCache& cache = problem.caches[read.cache];
            const bool by_share = reads.size() > 1 && equal_hits > 0;
            const double bytes = by_share ? cache.equal_cache * hits / equal_hits : cache.size * hits;
            least[read.cache] = std::max(least[read.cache], std::min(bytes, cache.cap));
        }
    }
    return least;
}

std::vector<Saving> savings_with_floors(const Problem& problem, std::span<const double> rates) {
    std::vector<Saving> savings;
    for (std::size_t j = 0; j < rates.size(); ++j) {
        const JobTerms& job = problem.jobs[j];
        if (!has_floor(job) || rates[j] <= job.bandwidth_floor) continue;
        for (const Read& read : problem.reads_of(job)) {
            const double size = problem.caches[read.cache].size;
            savings.push_back({.cache = read.cache,
                               .up_to_bytes = size * (1 - job.bandwidth_floor / rates[j]),
                               .density = read.part * rates[j] / size});
        }
    }
    return savings;
}

std::vector<Saving> pieces_of(const Problem& problem, std::span<const double> density, std::vector<Saving> savings) {
    // From the far end of each cache, where only what has no floor saves, towards its beginning.
    std::ranges::sort(savings, [](const Saving& a, const Saving& b) {
        if (a.cache != b.cache) return a.cache < b.cache;
        return a.up_to_bytes != b.up_to_bytes ? a.up_to_bytes > b.up_to_bytes : a.density < b.density;
    });
    std::vector<Saving> pieces;
    std::size_t next = 0;
    for (std::uint32_t i = 0; i < density.size(); ++i) {
        pieces.push_back({.cache = i, .up_to_bytes = problem.caches[i].cap, .density = density[i]});
        for (; next < savings.size() && savings[next].cache == i; ++next) {
            const Saving& saving = savings[next];
            pieces.push_back({.cache = i,
                              .up_to_bytes = std::min(saving.up_to_bytes, problem.caches[i].cap),
                              .density = pieces.back().density + saving.density});
        }
    }
    return pieces;
}

double highest_rate(const Problem& problem, std::size_t index) {
    const JobTerms& job = problem.jobs[index];
    const double ideal = problem.ideals[index];
    if (std::isinf(job.bandwidth_cap)) return ideal;
    if (!job.gains) return predicted_rate(ideal, job.bandwidth_cap, problem.effective_hit_ratios[index]);
    double hits = 0;
    for (const Read& read : problem.reads_of(job)) {
        const GroupCache& cache = problem.caches[read.cache];
        hits += read.part * hit_ratio(std::min(cache.cap, problem.group_bytes[cache.group]), cache.size);
    }
    return predicted_rate(ideal, job.bandwidth_cap, std::min(1.0, hits));
}

double caps_exceeded(const Problem& problem, std::span<const double> rates, std::span<const double> ratios) {
    double most = 0;
    if (!problem.limits_bandwidth) return most;
    for (std::size_t j = 0; j < rates.size(); ++j) {
        const JobTerms& job = problem.jobs[j];
        if (!has_cap(job)) continue;
        const double misses = rates[j] * (1 - problem.steady_hit_ratio(j, ratios));
        if (misses > job.bandwidth_cap * (1 + kRounding)) most = std::max(most, misses / job.bandwidth_cap);
    }
    return most;
}

}  // namespace larder::allocator
