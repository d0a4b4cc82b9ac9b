#include <algorithm>
#include <numeric>

#include "base/assert.h"
#include "scheduler/policies/shares.h"

namespace larder::scheduler {
namespace {

// Returns the level at which the group's jobs run all the time.
double full_time_level_of(const ShareGroup& group) {
    return group.need <= 0 ? kLevelMax : std::max(0.0, (group.rates[0] - group.floor) / group.need);
}

}  // namespace

double rate_of(const ShareProblem& problem, const Shares& shares, std::size_t group) {
    double rate = 0;
    for (std::size_t type = 0; type < shares.types; ++type) {
        rate += problem.groups[group].rates[type] * shares.part(group, type);
    }
    double shared = 0;
    for (std::size_t i = 0; i < shares.pair_gpus.size(); ++i) {
        shared += problem.pairs[i].rate_of(group) * shares.pair_gpus[i];
    }
    return rate + shared / problem.groups[group].jobs;
}

double level_reached(const ShareProblem& problem, const Shares& shares) {
    double level = kLevelMax;
    for (std::size_t g = 0; g < problem.groups.size(); ++g) {
        const ShareGroup& group = problem.groups[g];
        if (group.need > 0) level = std::min(level, (rate_of(problem, shares, g) - group.floor) / group.need);
    }
    return level;
}

Shares closed_form_shares(const ShareProblem& problem) {
    LARDER_ASSERT(problem.gpus_by_type.size() == 1);
    const std::size_t groups = problem.groups.size();
    std::vector<std::size_t> order(groups);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](std::size_t g) { return full_time_level_of(problem.groups[g]); });

    // The GPUs taken are fixed + slope * level. Once a group runs all the time, its term moves from the slope to the
    // fixed part.
    double fixed = 0;
    double slope = 0;
    const auto gpus_per_rate = [](const ShareGroup& group) { return group.jobs * group.gpus / group.rates[0]; };
    for (const ShareGroup& group : problem.groups) {
        if (group.rates[0] <= 0) continue;
        fixed += gpus_per_rate(group) * group.floor;
        slope += gpus_per_rate(group) * group.need;
    }
    double level = kLevelMax;
    for (const std::size_t g : order) {
        const ShareGroup& group = problem.groups[g];
        if (group.rates[0] <= 0) continue;
        const double full_time_level = full_time_level_of(group);
        if (fixed + slope * full_time_level > problem.gpus_by_type[0]) {
            level = slope <= 0 ? 0 : std::max(0.0, (problem.gpus_by_type[0] - fixed) / slope);
            break;
        }
        fixed += group.jobs * group.gpus - gpus_per_rate(group) * group.floor;
        slope -= gpus_per_rate(group) * group.need;
    }

    Shares shares{.types = 1, .parts = std::vector<double>(groups)};
    for (std::size_t g = 0; g < groups; ++g) {
        const ShareGroup& group = problem.groups[g];
        if (group.rates[0] <= 0) continue;
        const double wanted = level == kLevelMax ? 1 : (group.floor + level * group.need) / group.rates[0];
        shares.parts[g] = std::clamp(wanted, 0.0, 1.0);
    }
    shares.level = level_reached(problem, shares);
    return shares;
}

}  // namespace larder::scheduler
