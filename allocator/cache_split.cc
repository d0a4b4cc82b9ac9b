#include "allocator/cache_split.h"

#include <algorithm>

#include "allocator/largest_within.h"
#include "allocator/order.h"

namespace larder::allocator {
namespace {

constexpr int kBisections = 60;  // a double's worth of [0, 1]

std::vector<double> rates_of(const Problem& problem, auto&& rate) {
    std::vector<double> rates;
    rates.reserve(problem.jobs.size());
    for (const JobTerms& job : problem.jobs) rates.push_back(rate(job));
    return rates;
}

// Gives each group's room out in the order of density, densest first.
CacheSplit fill(const Problem& problem, std::span<const double> density) {
    CacheSplit split(problem.caches.size());
    std::vector<double> room = problem.group_bytes;
    for (std::uint32_t i = 0; i < split.size(); ++i) {
        split[i] = problem.caches[i].floor;
        room[problem.caches[i].group] -= split[i];
    }
    const auto give = [&](std::uint32_t i, double bytes_max) {
        double& left = room[problem.caches[i].group];
        const double bytes = std::clamp(bytes_max - split[i], 0.0, std::max(0.0, left));
        split[i] += bytes;
        left -= bytes;
    };
    for (const std::uint32_t i : descending(density)) {
        if (density[i] <= 0) break;
        give(i, problem.caches[i].cap);
    }
    for (std::uint32_t i = 0; i < split.size(); ++i) {
        give(i, std::min(problem.caches[i].cached, problem.caches[i].cap));
    }
    return split;
}

// Remote bytes per second that a byte of each cache saves at these rates.
std::vector<double> densities(const Problem& problem, std::span<const double> rates) {
    std::vector<double> density(problem.caches.size());
    for (std::size_t j = 0; j < rates.size(); ++j) {
        const JobTerms& job = problem.jobs[j];
        if (!job.gains) continue;
        for (const Read& read : problem.reads_of(job)) density[read.cache] += read.part * rates[j];
    }
    for (std::size_t i = 0; i < density.size(); ++i) density[i] /= problem.caches[i].size;
    return density;
}

// The largest sum of rates between the equal shares' and f*, for this split; nothing when equal shares do not fit it.
std::vector<double> largest_rates(const Problem& problem, const CacheSplit& split) {
    std::vector<double> rates = rates_of(problem, [](const JobTerms& job) { return job.equal_rate; });
    double left = problem.remote - remote_needed(problem, rates, split);
    if (left < -1e-9 * problem.remote) return {};
    std::vector<double> miss(rates.size());
    std::vector<double> cost(rates.size());
    for (std::uint32_t j = 0; j < rates.size(); ++j) {
        const JobTerms& job = problem.jobs[j];
        miss[j] = 1 - problem.steady_hit_ratio(job, split);
        cost[j] = miss[j] / job.value;
    }
    for (const std::uint32_t j : ascending(cost)) {
        const double wanted = problem.jobs[j].ideal - rates[j];
        const double given = miss[j] <= 0 ? wanted : std::min(wanted, std::max(0.0, left) / miss[j]);
        rates[j] += given;
        left -= given * miss[j];
    }
    return rates;
}

}  // namespace

CacheSplit best_split(const Problem& problem, std::span<const double> rates) {
    return fill(problem, densities(problem, rates));
}

double remote_needed(const Problem& problem, std::span<const double> rates, const CacheSplit& split) {
    double needed = 0;
    for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
        const JobTerms& job = problem.jobs[j];
        const double misses = rates[j] * (1 - problem.steady_hit_ratio(job, split));
        needed += std::max(misses, job.bandwidth_floor);
    }
    return needed;
}

CacheSplit efficiency_split(const Problem& problem) {
    const auto ideals = rates_of(problem, [](const JobTerms& job) { return job.ideal; });
    const auto equals = rates_of(problem, [](const JobTerms& job) { return job.equal_rate; });
    CacheSplit split = best_split(problem, ideals);
    const auto shares_fit = [&](const CacheSplit& of) { return remote_needed(problem, equals, of) <= problem.remote; };
    if (shares_fit(split)) return split;

    // A linear program with one more constraint: its multiplier blends the two densities. At the right one two splits
    // are equally good, and the mixture of them that just meets the constraint is the optimum.
    const std::vector<double> ideal_density = densities(problem, ideals);
    const std::vector<double> equal_density = densities(problem, equals);
    const auto blended = [&](double part) {
        std::vector<double> density(ideal_density.size());
        for (std::size_t i = 0; i < density.size(); ++i) {
            density[i] = (1 - part) * ideal_density[i] + part * equal_density[i];
        }
        return fill(problem, density);
    };
    const auto needed = [&](const CacheSplit& of) { return remote_needed(problem, equals, of); };
    CacheSplit fitting = blended(1);
    if (!shares_fit(fitting)) return fitting;
    // What is needed falls in steps as the part rises.
    double low = 0;
    double high = 1;
    for (int i = 0; i < kBisections; ++i) {
        const double middle = (low + high) / 2;
        CacheSplit trial = blended(middle);
        const bool fits = shares_fit(trial);
        (fits ? high : low) = middle;
        (fits ? fitting : split) = std::move(trial);
    }
    const auto mixture = [&](double part) {
        CacheSplit mixed(split.size());
        for (std::size_t i = 0; i < mixed.size(); ++i) mixed[i] = fitting[i] + part * (split[i] - fitting[i]);
        return mixed;
    };
    return mixture(largest_within(0, 1, problem.remote, [&](double part) { return needed(mixture(part)); }));
}

CacheSplit max_min_split(const Problem& problem) {
    const auto ideals = rates_of(problem, [](const JobTerms& job) { return job.ideal; });
    CacheSplit best = best_split(problem, ideals);
    if (problem.jobs.empty() || remote_needed(problem, ideals, best) <= problem.remote) return best;

    std::vector<double> rates(problem.jobs.size());
    const auto split_at = [&](double level) {
        for (std::size_t j = 0; j < rates.size(); ++j) {
            const JobTerms& job = problem.jobs[j];
            rates[j] = std::clamp(level * job.weight * job.equal_rate, job.equal_rate, job.ideal);
        }
        return best_split(problem, rates);
    };
    const auto needed = [&](double level) {
        const CacheSplit split = split_at(level);
        return remote_needed(problem, rates, split);
    };
    double high = 0;
    for (const JobTerms& job : problem.jobs) {
        if (job.equal_rate > 0) high = std::max(high, job.ideal / (job.weight * job.equal_rate));
    }
    // Equal shares fit, if only up to rounding; their split is the one to keep then.
    if (needed(0) > problem.remote || needed(high) <= problem.remote) return split_at(0);
    return split_at(largest_within(0, high, problem.remote, needed));
}

namespace {

// Alternates rates and cache, as long as the rates' value grows, and keeps the best split it meets.
class Climb {
public:
    explicit Climb(const Problem& problem) : problem_(problem), best_(efficiency_split(problem)) {
        best_value_ = value_of(largest_rates(problem, best_));
        from(best_);
    }

    void from(CacheSplit split) {
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
            split = best_split(problem_, found);
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
    return best_split(problem, rates_of(problem, [](const JobTerms& job) { return job.equal_rate; }));
}

}  // namespace

CacheSplit throughput_split(const Problem& problem) {
    Climb climb(problem);
    climb.from(split_for_equal_rates(problem));
    climb.from(max_min_split(problem));
    climb.from(equal_split(problem));

    // Local search: one cache filled before all others, the rest as the best split so far has it.
    constexpr std::size_t kMovesMax = 64;
    std::size_t moves = 0;
    for (std::size_t first = 0; first < problem.caches.size(); ++first) {
        const std::vector<double> found = largest_rates(problem, climb.best());
        if (found.empty()) break;
        std::vector<double> density = densities(problem, found);
        if (density[first] == 0) continue;
        if (++moves > kMovesMax) break;
        density[first] = std::numeric_limits<double>::max();
        climb.from(fill(problem, density));
    }
    return climb.best();
}

CacheSplit utilisation_split(const Problem& problem) {
    Climb climb(problem);
    // Where the remote serves nobody else, cache is worth what it alone keeps going.
    climb.from(best_split(problem, rates_of(problem, [](const JobTerms& job) { return job.value * job.ideal; })));
    climb.from(split_for_equal_rates(problem));
    return climb.best();
}

CacheSplit equal_split(const Problem& problem) {
    CacheSplit split;
    for (const GroupCache& cache : problem.caches) split.push_back(cache.equal_cache);
    return split;
}

CacheSplit towards_equal_split(const Problem& problem, const CacheSplit& split) {
    const auto equals = rates_of(problem, [](const JobTerms& job) { return job.equal_rate; });
    const CacheSplit equal = equal_split(problem);
    const auto mixture = [&](double part) {
        CacheSplit mixed(split.size());
        for (std::size_t i = 0; i < mixed.size(); ++i) mixed[i] = equal[i] + part * (split[i] - equal[i]);
        return mixed;
    };
    const auto needed = [&](double part) { return remote_needed(problem, equals, mixture(part)); };
    const double remote = problem.remote * (1 + 1e-9);  // equal shares fit, up to rounding
    if (needed(1) <= remote) return split;
    if (needed(0) > remote) return equal;
    return mixture(largest_within(0, 1, remote, needed));
}

CacheSplit pinned_split(const Problem& problem) {
    CacheSplit split;
    for (const GroupCache& cache : problem.caches) split.push_back(cache.floor);
    return split;
}

}  // namespace larder::allocator
