#include "allocator/cache_split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "allocator/bandwidth_limits.h"
#include "allocator/largest_within.h"
#include "allocator/model.h"
#include "allocator/sorted_indices.h"

namespace larder::allocator {
namespace {

constexpr int kBisections = 60;  // enough to bisect [0, 1] to a double's precision

// Returns rate(j) for each index j in Problem::jobs.
std::vector<double> rates_of(const Problem& problem, auto&& rate) {
    std::vector<double> rates;
    rates.reserve(problem.jobs.size());
    for (std::size_t j = 0; j < problem.jobs.size(); ++j) rates.push_back(rate(j));
    return rates;
}

// Gives each group's room to its caches. Every cache starts with its floor.
class Filling {
public:
    explicit Filling(const Problem& problem)
        : problem_(problem), split_(problem.caches.size()), room_(problem.group_bytes) {
        for (std::uint32_t i = 0; i < split_.size(); ++i) {
            split_[i] = problem.caches[i].floor;
            room_[problem.caches[i].group] -= split_[i];
        }
    }

    void give(std::uint32_t i, double bytes_max) {
        double& left = room_[problem_.caches[i].group];
        const double bytes = std::clamp(bytes_max - split_[i], 0.0, std::max(0.0, left));
        split_[i] += bytes;
        left -= bytes;
    }
    // Fills the caches in order of density, densest first.
    void give_by(std::span<const double> density) {
        for (const std::uint32_t i : descending(density)) {
            if (density[i] <= 0) break;
            give(i, problem_.caches[i].cap);
        }
    }
    void keep_cached() {
        for (std::uint32_t i = 0; i < split_.size(); ++i) {
            give(i, std::min(problem_.caches[i].cached, problem_.caches[i].cap));
        }
    }
    CacheSplit take() { return std::move(split_); }

private:
    const Problem& problem_;
    CacheSplit split_;
    std::vector<double> room_;
};

// The savings of cache at some rates.
struct Savings {
    std::vector<double> density;    // remote bytes per second that a byte of each cache saves
    std::vector<double> unbounded;  // the same without jobs that have floors; empty if no job has one
    std::vector<Saving> bounded;    // of the jobs that have floors
};

// Fills the caches in order of density, after each has its bytes in `least` (empty: 0).
CacheSplit fill(const Problem& problem, const Savings& savings, std::span<const double> least) {
    Filling filling(problem);
    for (std::uint32_t i = 0; i < least.size(); ++i) filling.give(i, least[i]);
    if (savings.unbounded.empty()) {
        filling.give_by(savings.density);
        filling.keep_cached();
        return filling.take();
    }
    const std::vector<Saving> pieces = pieces_of(problem, savings.unbounded, savings.bounded);
    std::vector<double> piece_densities;
    piece_densities.reserve(pieces.size());
    for (const Saving& piece : pieces) piece_densities.push_back(piece.density);
    for (const std::uint32_t p : descending(piece_densities)) {
        if (piece_densities[p] <= 0) break;
        filling.give(pieces[p].cache, pieces[p].up_to_bytes);
    }
    filling.keep_cached();
    // The rest goes to cache that would save something if rates were higher than assumed.
    filling.give_by(savings.density);
    return filling.take();
}

// Returns the remote bytes per second that a byte of each cache saves at these rates.
std::vector<double> densities(const Problem& problem, std::span<const double> rates) {
    std::vector<double> density(problem.caches.size());
    for (std::size_t j = 0; j < rates.size(); ++j) {
        if (problem.gains[j] == 0) continue;
        for (const Read& read : problem.reads_of(j)) density[read.cache] += read.part * rates[j];
    }
    for (std::size_t i = 0; i < density.size(); ++i) density[i] /= problem.caches[i].size;
    return density;
}

Savings savings_of(const Problem& problem, std::span<const double> rates) {
    Savings savings{.density = densities(problem, rates)};
    if (!problem.limits_bandwidth) return savings;
    std::vector<double> without_floors(rates.begin(), rates.end());
    bool any = false;
    for (std::size_t j = 0; j < rates.size(); ++j) {
        if (!has_floor(problem, j)) continue;
        without_floors[j] = 0;
        any = true;
    }
    if (!any) return savings;
    savings.unbounded = densities(problem, without_floors);
    savings.bounded = savings_with_floors(problem, rates);
    return savings;
}

// Mixes two vectors: `second` counts for `part`, `first` for the rest.
std::vector<double> mixed(std::span<const double> first, std::span<const double> second, double part) {
    std::vector<double> both(first.size());
    for (std::size_t i = 0; i < both.size(); ++i) both[i] = std::lerp(first[i], second[i], part);
    return both;
}

Savings blended(const Savings& first, const Savings& second, double part) {
    Savings both{.density = mixed(first.density, second.density, part),
                 .unbounded = mixed(first.unbounded, second.unbounded, part)};
    for (const auto& [savings, weight] : {std::pair(&first, 1 - part), std::pair(&second, part)}) {
        for (Saving saving : savings->bounded) {
            saving.density *= weight;
            both.bounded.push_back(saving);
        }
    }
    return both;
}

// Returns the split that needs least remote bandwidth at these rates, among the splits that let jobs with a bandwidth
// cap read at `promised`. Cache that saves nothing keeps the bytes that are cached already.
CacheSplit best_split(const Problem& problem, std::span<const double> rates, std::span<const double> promised) {
    return fill(problem, savings_of(problem, rates), least_cache(problem, promised));
}

// Returns the remote bandwidth that the jobs need at these rates. The result also exceeds Problem::remote if one job
// needs more than its cap.
double least_remote(const Problem& problem, std::span<const double> rates, const CacheSplit& split) {
    const std::vector<double> ratios = problem.hit_ratios(split);
    double needed = 0;
    for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
        const double misses = rates[j] * (1 - problem.steady_hit_ratio(j, ratios));
        needed += std::max(misses, problem.bandwidth_floors[j]);
    }
    return std::max(needed, problem.remote * largest_cap_excess(problem, rates, ratios));
}

// Returns rates between equal shares and f* with the largest sum, for this split. Empty if equal shares do not fit.
std::vector<double> largest_rates(const Problem& problem, const CacheSplit& split) {
    std::vector<double> rates = problem.equal_rates;
    double left = problem.remote - least_remote(problem, rates, split);
    if (left < -1e-9 * problem.remote) return {};
    const std::vector<double> ratios = problem.hit_ratios(split);
    std::vector<double> miss(rates.size());
    std::vector<double> cost(rates.size());
    for (std::uint32_t j = 0; j < rates.size(); ++j) {
        miss[j] = 1 - problem.steady_hit_ratio(j, ratios);
        cost[j] = miss[j] / problem.jobs[j].value;
    }
    for (const std::uint32_t j : ascending(cost)) {
        const double wanted =
            std::max(0.0, predicted_rate(problem.ideals[j], problem.bandwidth_caps[j], 1 - miss[j]) - rates[j]);
        const double unused_floor = std::max(0.0, problem.bandwidth_floors[j] - rates[j] * miss[j]);
        const double free = std::max(0.0, left) + unused_floor;
        const double given = miss[j] <= 0 ? wanted : std::min(wanted, free / miss[j]);
        rates[j] += given;
        left -= std::max(0.0, given * miss[j] - unused_floor);
    }
    return rates;
}

}  // namespace

CacheSplit efficiency_split(const Problem& problem) {
    const std::vector<double>& ideals = problem.ideals;
    const std::vector<double>& equals = problem.equal_rates;
    CacheSplit split = best_split(problem, ideals, equals);
    const auto needed = [&](const CacheSplit& trial) { return least_remote(problem, equals, trial); };
    const auto shares_fit = [&](const CacheSplit& trial) { return needed(trial) <= problem.remote; };
    if (shares_fit(split)) return split;

    // This is a linear program with one more constraint: its multiplier blends the two densities. At the right
    // multiplier two splits are equally good, and the mixture of them that just meets the constraint is the optimum.
    const Savings of_ideals = savings_of(problem, ideals);
    const Savings of_equals = savings_of(problem, equals);
    const std::vector<double> least = least_cache(problem, equals);
    const auto split_at = [&](double part) { return fill(problem, blended(of_ideals, of_equals, part), least); };
    CacheSplit fitting = split_at(1);
    if (!shares_fit(fitting)) return fitting;
    // The bandwidth needed falls in steps as the part rises.
    double low = 0;
    double high = 1;
    for (int i = 0; i < kBisections; ++i) {
        const double middle = (low + high) / 2;
        CacheSplit trial = split_at(middle);
        const bool fits = shares_fit(trial);
        (fits ? high : low) = middle;
        (fits ? fitting : split) = std::move(trial);
    }
    const auto mixture = [&](double part) { return mixed(fitting, split, part); };
    return mixture(largest_within({0, needed(fitting)}, {1, needed(split)}, problem.remote,
                                  [&](double part) { return needed(mixture(part)); }));
}

CacheSplit max_min_split(const Problem& problem) {
    const auto highest = rates_of(problem, [&](std::size_t j) { return highest_rate(problem, j); });
    CacheSplit best = best_split(problem, highest, highest);
    if (problem.jobs.empty() || least_remote(problem, highest, best) <= problem.remote) return best;

    const std::vector<double>& equals = problem.equal_rates;
    const auto slopes = rates_of(problem, [&](std::size_t j) { return problem.jobs[j].weight * equals[j]; });
    std::vector<double> rates(problem.jobs.size());
    double level_of_best = -1;
    const auto set_level = [&](double level) {
        for (std::size_t j = 0; j < rates.size(); ++j) {
            rates[j] = std::min(std::max(level * slopes[j], equals[j]), highest[j]);
        }
        best = best_split(problem, rates, rates);
        level_of_best = level;
    };
    const auto needed = [&](double level) {
        set_level(level);
        return least_remote(problem, rates, best);
    };
    double high = 0;
    for (std::size_t j = 0; j < slopes.size(); ++j) {
        if (equals[j] > 0) high = std::max(high, problem.ideals[j] / slopes[j]);
    }
    // Equal shares fit, perhaps only up to rounding. If they exceed the remote by rounding, their split is kept.
    const FunctionPoint highest_level{high, needed(high)};
    const FunctionPoint equal_level{0, needed(0)};
    double level = 0;
    if (equal_level.value <= problem.remote && highest_level.value > problem.remote) {
        level = largest_within(equal_level, highest_level, problem.remote, needed);
    }
    if (level_of_best != level) set_level(level);
    return best;
}

namespace {

// Alternates between the largest rates for a split and the best split for these rates, while the value of the rates
// grows. Keeps the best split found.
class Climb {
public:
    explicit Climb(const Problem& problem) : problem_(problem), best_(efficiency_split(problem)) {
        best_value_ = value_of(largest_rates(problem, best_));
        climb_from(best_);
    }

    void climb_from(CacheSplit split) {
        constexpr int kRounds = 20;
        double before = -1;
        for (int round = 0; round < kRounds; ++round) {
            const std::vector<double> found = largest_rates(problem_, split);
            const double value = value_of(found);
            if (found.empty() || value <= before * (1 + 1e-12)) return;
            before = value;
            if (value > best_value_) {
                best_value_ = value;
                best_ = split;
            }
            split = best_split(problem_, found, found);
        }
    }
    const CacheSplit& best() const { return best_; }

private:
    double value_of(const std::vector<double>& rates) const {
        double value = 0;
        for (std::size_t j = 0; j < rates.size(); ++j) value += problem_.jobs[j].value * rates[j];
        return value;
    }

    const Problem& problem_;
    CacheSplit best_;
    double best_value_ = 0;
};

CacheSplit split_for_equal_rates(const Problem& problem) {
    const std::vector<double>& equals = problem.equal_rates;
    return best_split(problem, equals, equals);
}

}  // namespace

CacheSplit throughput_split(const Problem& problem) {
    Climb climb(problem);
    climb.climb_from(split_for_equal_rates(problem));
    climb.climb_from(max_min_split(problem));
    climb.climb_from(equal_split(problem));

    // Local search: fill one cache before all others, and fill the rest as in the best split so far.
    constexpr std::size_t kMovesMax = 64;
    std::size_t moves = 0;
    for (std::size_t first = 0; first < problem.caches.size(); ++first) {
        const std::vector<double> found = largest_rates(problem, climb.best());
        if (found.empty()) break;
        Savings savings = savings_of(problem, found);
        if (savings.density[first] == 0) continue;
        if (++moves > kMovesMax) break;
        savings.density[first] = std::numeric_limits<double>::max();
        if (!savings.unbounded.empty()) savings.unbounded[first] = std::numeric_limits<double>::max();
        climb.climb_from(fill(problem, savings, least_cache(problem, problem.equal_rates)));
    }
    return climb.best();
}

CacheSplit utilisation_split(const Problem& problem) {
    Climb climb(problem);
    // One start values a cache by the work that its hits alone keep going.
    const auto values = rates_of(problem, [&](std::size_t j) { return problem.jobs[j].value * problem.ideals[j]; });
    climb.climb_from(fill(problem, {.density = densities(problem, values)}, least_cache(problem, problem.equal_rates)));
    climb.climb_from(split_for_equal_rates(problem));
    return climb.best();
}

CacheSplit equal_split(const Problem& problem) {
    CacheSplit split;
    for (const GroupCache& cache : problem.caches) split.push_back(cache.equal_cache);
    return split;
}

CacheSplit towards_equal_split(const Problem& problem, const CacheSplit& split) {
    const std::vector<double>& equals = problem.equal_rates;
    CacheSplit equal = equal_split(problem);
    const auto mixture = [&](double part) { return mixed(equal, split, part); };
    const auto needed = [&](double part) { return least_remote(problem, equals, mixture(part)); };
    const double remote = problem.remote * (1 + 1e-9);  // equal shares fit, up to rounding
    const FunctionPoint whole{1, needed(1)};
    if (whole.value <= remote) return split;
    const FunctionPoint none{0, needed(0)};
    if (none.value > remote) return equal;
    return mixture(largest_within(none, whole, remote, needed));
}

CacheSplit pinned_split(const Problem& problem) {
    CacheSplit split;
    for (const GroupCache& cache : problem.caches) split.push_back(cache.floor);
    return split;
}

}  // namespace larder::allocator
