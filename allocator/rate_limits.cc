#include "allocator/rate_limits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>

#include "allocator/largest_within.h"
#include "allocator/sorted_indices.h"

namespace larder::allocator {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

}  // namespace

std::uint32_t RateLimits::add(double capacity) {
    if (std::isinf(capacity)) return kNoLimit;
    capacities_.push_back(capacity);
    return static_cast<std::uint32_t>(capacities_.size() - 1);
}

void RateLimits::finish() {
    for (std::size_t job = 1; job < uses_begin_.size(); ++job) {
        uses_begin_[job] = std::max(uses_begin_[job], uses_begin_[job - 1]);
    }
    limits_begin_.assign(capacities_.size() + 1, 0);
    for (const Use& use : uses_) ++limits_begin_[use.limit + 1];
    std::partial_sum(limits_begin_.begin(), limits_begin_.end(), limits_begin_.begin());
    if (capacities_.size() == 1) return;
    by_limit_.resize(uses_.size());
    std::vector<std::uint32_t> next(limits_begin_.begin(), limits_begin_.end() - 1);
    for (const Use& use : uses_) by_limit_[next[use.limit]++] = use;
}

RateLimits RateLimits::of_remote(const Problem& problem, std::span<const double> hit_ratios) {
    RateLimits limits(0);
    limits.add(problem.remote);
    const std::size_t jobs = problem.jobs.size();
    limits.uses_.resize(jobs);
    limits.uses_begin_.resize(jobs + 1);
    for (std::uint32_t j = 0; j < jobs; ++j) {
        limits.uses_[j] = {
            .limit = 0, .job = j, .per_byte = std::max(0.0, 1 - hit_ratios[j]), .least = problem.bandwidth_floors[j]};
        limits.uses_begin_[j + 1] = j + 1;
    }
    limits.limits_begin_ = {0, static_cast<std::uint32_t>(jobs)};
    return limits;
}

double RateLimits::used(std::uint32_t limit, std::span<const double> rates) const {
    double sum = 0;
    for (const Use& use : uses_of_limit(limit)) sum += use.load(rates[use.job]);
    return sum;
}

bool RateLimits::fits(std::span<const double> rates, double slack) const {
    for (std::uint32_t i = 0; i < capacities_.size(); ++i) {
        if (used(i, rates) > capacities_[i] * (1 + slack)) return false;
    }
    return true;
}

// --- level by level

struct RateLimits::Filling {
    std::span<const double> low, slope;
    std::vector<double> high;
    double level_max = 0;
    std::vector<double> rates;
    std::vector<char> settled;

    double rate_at(std::uint32_t job, double level) const {
        return settled[job] ? rates[job] : std::clamp(level * slope[job], low[job], high[job]);
    }
    double used(std::span<const Use> uses, double level) const {
        double sum = 0;
        for (const Use& use : uses) sum += use.load(rate_at(use.job, level));
        return sum;
    }
    // Returns the highest level the bound allows, `from` at least.
    double level(std::span<const Use> uses, double capacity, double level_min) const {
        const FunctionPoint highest{level_max, used(uses, level_max)};
        if (highest.value <= capacity) return kInfinite;
        const FunctionPoint lowest{level_min, used(uses, level_min)};
        if (lowest.value > capacity) return level_min;
        return largest_within(lowest, highest, capacity, [&](double at_level) { return used(uses, at_level); });
    }
};

std::vector<double> RateLimits::fill(std::span<const double> low, std::span<const double> slope,
                                     std::span<const double> high) const {
    Filling filling{.low = low, .slope = slope, .high = {high.begin(), high.end()}, .rates = {}, .settled = {}};
    filling.rates.assign(low.size(), 0);
    filling.settled.assign(low.size(), 0);
    for (std::size_t j = 0; j < low.size(); ++j) {
        if (slope[j] > 0) filling.level_max = std::max(filling.level_max, high[j] / slope[j]);
    }
    // A bound's level only rises while other bounds settle jobs below it. So the bound whose level, computed again, is
    // still the smallest is next.
    using Entry = std::pair<double, std::uint32_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    const auto level_of = [&](std::uint32_t limit, double level_min) {
        return filling.level(uses_of_limit(limit), capacities_[limit], level_min);
    };
    for (std::uint32_t i = 0; i < capacities_.size(); ++i) {
        if (const double level = level_of(i, 0); level < kInfinite) queue.emplace(level, i);
    }
    while (!queue.empty()) {
        const auto [before, limit] = queue.top();
        queue.pop();
        const double level = level_of(limit, before);
        if (level > before * (1 + 1e-14) && (level == kInfinite || (!queue.empty() && level > queue.top().first))) {
            if (level < kInfinite) queue.emplace(level, limit);
            continue;
        }
        for (const Use& use : uses_of_limit(limit)) {
            if (filling.settled[use.job] || use.per_byte <= 0) continue;
            const double rate = filling.rate_at(use.job, level);
            // While its floor carries the job, a rising rate takes nothing from other jobs.
            if (const double carried = use.least / use.per_byte; rate < carried) {
                filling.high[use.job] = std::min(filling.high[use.job], carried);
                continue;
            }
            filling.rates[use.job] = rate;
            filling.settled[use.job] = 1;
        }
    }
    for (std::uint32_t j = 0; j < low.size(); ++j) {
        if (!filling.settled[j]) filling.rates[j] = filling.high[j];
    }
    return filling.rates;
}

// --- the largest sum

std::vector<double> RateLimits::maximize(std::span<const double> low, std::span<const double> high,
                                         std::span<const double> cost) const {
    std::vector<double> rates(low.begin(), low.end());
    if (fits(high)) {
        rates.assign(high.begin(), high.end());
        return rates;
    }
    std::vector<double> left(capacities_);
    for (std::uint32_t i = 0; i < left.size(); ++i) left[i] -= used(i, rates);
    // Jobs of one dataset are adjacent and have equal hit ratios: there are far fewer runs of equal costs than jobs.
    std::vector<double> costs;
    std::vector<std::uint32_t> begins;
    for (std::uint32_t job = 0; job < cost.size(); ++job) {
        if (!costs.empty() && cost[job] == costs.back()) continue;
        costs.push_back(cost[job]);
        begins.push_back(job);
    }
    begins.push_back(static_cast<std::uint32_t>(cost.size()));
    const auto raise = [&](std::uint32_t job) {
        double more = high[job] - rates[job];
        if (more <= 0) return;
        // A job's load on a bound does not grow until it exceeds the job's floor.
        const auto spare = [&](const Use& use) { return std::max(0.0, use.least - use.per_byte * rates[job]); };
        for (const Use& use : uses_of_job(job)) {
            if (use.per_byte > 0) more = std::min(more, (std::max(0.0, left[use.limit]) + spare(use)) / use.per_byte);
        }
        if (more <= 0) return;
        for (const Use& use : uses_of_job(job)) left[use.limit] -= std::max(0.0, more * use.per_byte - spare(use));
        rates[job] += more;
    };
    for (const std::uint32_t run : ascending(costs)) {
        for (std::uint32_t job = begins[run]; job < begins[run + 1]; ++job) raise(job);
    }
    return rates;
}

}  // namespace larder::allocator
