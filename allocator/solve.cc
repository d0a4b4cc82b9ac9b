#include "allocator/solve.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "allocator/cache_split.h"
#include "allocator/cluster_limits.h"
#include "allocator/model.h"
#include "allocator/quota_placement.h"

namespace larder::allocator {
namespace {

constexpr int kRoundsMax = 3;  // times to solve again with rates bounded by disk and network
// Rounding quotas to whole bytes may cost an equal share this fraction of its rate.
constexpr double kQuotaRounding = 1.2e-7;

CacheSplit split_for(const Problem& problem, ObjectiveKind kind) {
    switch (kind) {
        case ObjectiveKind::efficiency: return efficiency_split(problem);
        case ObjectiveKind::max_min: return max_min_split(problem);
        case ObjectiveKind::throughput: return throughput_split(problem);
        case ObjectiveKind::utilisation: return utilisation_split(problem);
        case ObjectiveKind::equal_shares: return equal_split(problem);
        case ObjectiveKind::pinned: return pinned_split(problem);
    }
    return pinned_split(problem);
}

// Returns the rates these hit ratios allow, by the objective. No job falls below its equal share's rate. If the cache
// is not yet as planned and those rates do not fit, the lower bound is the rate from an equal share of bandwidth.
std::vector<double> rates_for(const ClusterState& state, const Problem& problem, ObjectiveKind kind,
                              std::span<const double> hits, const std::vector<std::vector<NodeCache>>& quotas) {
    const RateLimits limits = cluster_limits(state, problem, hits, quotas);
    const std::size_t count = problem.jobs.size();
    std::vector<double> low(count), high(count), slopes, costs;
    for (std::size_t j = 0; j < count; ++j) {
        const JobTerms& job = problem.jobs[j];
        high[j] = predicted_rate(problem.ideals[j], problem.bandwidth_caps[j], hits[j]);
        low[j] = std::min(problem.equal_rates[j], high[j]);
        if (kind == ObjectiveKind::max_min) {
            slopes.push_back(std::max(job.weight * problem.equal_rates[j], 1e-9 * problem.ideals[j]));
        } else {
            costs.push_back((1 - hits[j]) / job.value);
        }
    }
    if (kind == ObjectiveKind::equal_shares || kind == ObjectiveKind::pinned) {
        for (std::size_t j = 0; j < count; ++j) {
            high[j] = predicted_rate(problem.ideals[j], problem.jobs[j].equal_bandwidth, hits[j]);
        }
        return limits.fill(std::vector<double>(count), high, high);
    }
    bool fits = limits.fits(low);
    if (!fits && limits.fits(low, kQuotaRounding)) {
        for (const double part : {1e-9, 1e-8, 1e-7}) {
            if (fits) break;
            for (double& rate : low) rate *= 1 - part;
            fits = limits.fits(low);
        }
    }
    if (!fits) {
        for (std::size_t j = 0; j < count; ++j) {
            low[j] = std::min(low[j], predicted_rate(problem.ideals[j], problem.jobs[j].equal_bandwidth, hits[j]));
        }
        if (!limits.fits(low)) low = limits.fill(std::vector<double>(count), low, low);
    }
    return kind == ObjectiveKind::max_min ? limits.fill(low, slopes, high) : limits.maximize(low, high, costs);
}

// Returns the bandwidth the rates need plus an equal part of the rest: estimates err, and unused bandwidth helps no
// job. For equal_shares the grants are just the equal shares.
std::vector<double> bandwidth_grants(const Problem& problem, ObjectiveKind kind, std::span<const double> rates,
                                     std::span<const double> hits) {
    std::vector<double> grant(rates.size());
    if (kind == ObjectiveKind::equal_shares) {
        for (std::size_t j = 0; j < rates.size(); ++j) grant[j] = problem.jobs[j].equal_bandwidth;
        return grant;
    }
    double left = problem.remote;
    for (std::size_t j = 0; j < rates.size(); ++j) {
        grant[j] = std::max(rates[j] * (1 - hits[j]), problem.bandwidth_floors[j]);
        left -= grant[j];
    }
    const double part = rates.empty() ? 0 : std::max(0.0, left) / static_cast<double>(rates.size());
    for (std::size_t j = 0; j < rates.size(); ++j)
        grant[j] = std::min(grant[j] + part, std::max(grant[j], problem.bandwidth_caps[j]));
    return grant;
}

std::vector<double> steady_hits(const Problem& problem, const std::vector<std::vector<NodeCache>>& quotas) {
    const std::vector<double> ratios = problem.hit_ratios(split_of(problem, quotas));
    std::vector<double> hits(problem.jobs.size());
    for (std::size_t j = 0; j < hits.size(); ++j) hits[j] = problem.steady_hit_ratio(j, ratios);
    return hits;
}

// Lowers the ideals of jobs bound by a disk or a network to their rates, so that cache is chosen for those rates. A job
// counts as bound by them if it stays below f* and below the rate its cap allows while the remote has bandwidth left.
// Returns true if there was such a job.
bool lower_to_bounded_rates(const Problem& problem, const Solution& solution, std::vector<double>& ideals) {
    bool any = false;
    double left = problem.remote;
    for (std::size_t j = 0; j < ideals.size(); ++j) {
        const double misses = solution.steady_rates[j] * (1 - solution.steady_hit_ratios[j]);
        left -= std::max(misses, problem.bandwidth_floors[j]);
    }
    for (std::size_t j = 0; j < ideals.size(); ++j) {
        const double rate = solution.steady_rates[j];
        if (rate >= ideals[j] * (1 - 1e-9)) continue;
        const double hits = solution.steady_hit_ratios[j];
        const double highest = predicted_rate(ideals[j], problem.bandwidth_caps[j], hits);
        const double more = (highest - rate) * (1 - hits);
        const bool remote_bound = more > 0 && left <= 1e-6 * problem.remote;
        if (rate >= highest * (1 - 1e-9) || remote_bound || rate <= 0) continue;
        ideals[j] = rate;
        any = true;
    }
    return any;
}

}  // namespace

Solution solve_with_quotas(const ClusterState& state, const Problem& problem, ObjectiveKind kind,
                           std::vector<std::vector<NodeCache>> quotas) {
    Solution solution{.quotas = std::move(quotas)};
    solution.steady_hit_ratios = steady_hits(problem, solution.quotas);
    solution.steady_rates = rates_for(state, problem, kind, solution.steady_hit_ratios, solution.quotas);
    const std::vector<double>& hits = problem.effective_hit_ratios;
    solution.rates = rates_for(state, problem, kind, hits, solution.quotas);
    solution.bandwidths = bandwidth_grants(problem, kind, solution.rates, hits);
    return solution;
}

Solution solve(const ClusterState& state, const Problem& problem, ObjectiveKind kind) {
    std::vector<double> ideals = problem.ideals;
    const auto solution_of = [&](const Problem& bounded) {
        return solve_with_quotas(state, problem, kind, place_quotas(state, bounded, split_for(bounded, kind), ideals));
    };
    Solution best = solution_of(problem);
    if (!lower_to_bounded_rates(problem, best, ideals)) return best;

    Problem bounded = problem;
    for (int round = 1; round <= kRoundsMax; ++round) {
        for (std::size_t j = 0; j < ideals.size(); ++j) {
            bounded.ideals[j] = ideals[j];
            bounded.equal_rates[j] = std::min(bounded.equal_rates[j], ideals[j]);
        }
        Solution solution = solution_of(bounded);
        if (gain(problem, kind, best, solution) > 0) best = std::move(solution);
        if (!lower_to_bounded_rates(problem, best, ideals)) break;
    }
    return best;
}

bool reaches_equal_shares(const Problem& problem, const Solution& solution) {
    for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
        if (solution.steady_rates[j] < problem.equal_rates[j] * (1 - 1e-6)) return false;
    }
    return true;
}

Solution solve_for_rotation(const ClusterState& state, const Problem& averages, const Problem& running,
                            ObjectiveKind kind, std::vector<std::vector<NodeCache>> quotas) {
    Solution solution = solve_with_quotas(state, running, kind, std::move(quotas));
    if (kind == ObjectiveKind::equal_shares || kind == ObjectiveKind::pinned ||
        reaches_equal_shares(running, solution)) {
        return solution;
    }
    const CacheSplit split = towards_equal_split(running, split_of(running, solution.quotas));
    return solve_with_quotas(state, running, kind, place_quotas(state, averages, split, averages.ideals));
}

double steady_remote(const Problem& problem, const Solution& solution) {
    double sum = 0;
    for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
        sum += solution.steady_rates[j] * (1 - solution.steady_hit_ratios[j]);
    }
    return sum;
}

double gain(const Problem& problem, ObjectiveKind kind, const Solution& before, const Solution& after) {
    const auto sum = [&](const Solution& solution) {
        double total = 0;
        for (std::size_t j = 0; j < problem.jobs.size(); ++j) total += problem.jobs[j].value * solution.steady_rates[j];
        return total;
    };
    const auto smallest = [&](const Solution& solution) {
        double ratio = std::numeric_limits<double>::infinity();
        for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
            const double equal_rate = problem.equal_rates[j];
            // A job at f* cannot improve, so it does not hold the others down.
            if (equal_rate <= 0 || solution.steady_rates[j] >= problem.ideals[j] * (1 - 1e-9)) continue;
            ratio = std::min(ratio, solution.steady_rates[j] / (problem.jobs[j].weight * equal_rate));
        }
        return ratio;
    };
    const auto relative = [](double old_value, double new_value) {
        if (old_value == new_value) return 0.0;
        if (std::isinf(old_value)) return -1.0;
        // Sums may differ in their last digits with the order of the lists.
        if (std::abs(new_value - old_value) <= 1e-9 * old_value) return 0.0;
        return old_value > 0 ? (new_value - old_value) / old_value : std::numeric_limits<double>::infinity();
    };
    if (kind == ObjectiveKind::max_min) {
        const double change = relative(smallest(before), smallest(after));
        if (change != 0) return change;
    }
    if (const double change = relative(sum(before), sum(after)); change != 0) return change;
    return relative(steady_remote(problem, after), steady_remote(problem, before));
}

}  // namespace larder::allocator
