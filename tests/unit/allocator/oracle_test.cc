// Compares assign() with linear programs solved by CLP: both reach the same optimum on random clusters where only the
// remote and the cache bind.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "allocator/assign.h"
#include "tests/oracle/cluster_lp.h"
#include "tests/oracle/lp.h"
#include "tests/oracle/random_state.h"
#include "tests/oracle/small_lp.h"

namespace larder::test {
namespace {

using namespace allocator;
using namespace oracle;

constexpr double kOracleTolerance = 1e-6;

// Covers the steady state only: no epochs under way, no limits of nodes. Half of the states have operators' limits and
// the other half several peer groups, because the linear program does not model how a limit is split between groups.
ClusterState random_state(std::uint64_t seed) {
    RandomStateOptions options{.node_limits = false, .epochs = false};
    options.operator_limits = seed % 2 == 1;
    options.peer_groups = seed % 2 == 0;
    if (seed % 4 < 2) {
        options.jobs_max = 200;
        options.datasets_max = 40;
        options.nodes_max = 20;
    }
    ClusterState state = RandomState(seed, options).make();
    state.remote_bytes_per_second /= 8;
    for (ClusterJob& job : state.jobs) job.bandwidth_floor_bytes_per_second /= 8;
    return state;
}

double needed_remote(const ClusterState& state, const Plan& plan, const std::vector<double>& rates) {
    double sum = 0;
    for (std::size_t j = 0; j < rates.size(); ++j) {
        const double misses = rates[j] * (1 - plan.jobs[j].steady_hit_ratio);
        sum += std::max(misses, state.jobs[j].bandwidth_floor_bytes_per_second);
    }
    return sum;
}

class Oracle : public testing::TestWithParam<int> {
protected:
    static constexpr int kSeedsEach = 100;
};

TEST_P(Oracle, EfficiencyReachesTheLinearProgramsOptimum) {
    int summed = 0;
    for (int k = 0; k < kSeedsEach; ++k) {
        const auto seed = static_cast<std::uint64_t>(GetParam() * kSeedsEach + k);
        const ClusterState state = random_state(seed);
        const auto plan = assign(state, {.kind = ObjectiveKind::efficiency});
        ASSERT_TRUE(plan.has_value()) << plan.error().message;
        const ClusterLp program(state, *plan);
        const LpProblem& problem = program.problem();
        const std::vector<double> rates = program.ideals();
        const LpSplit optimum = least_remote(problem, rates, true);
        ASSERT_TRUE(optimum.feasible) << "seed " << seed;
        const double needed = needed_remote(state, *plan, rates);
        EXPECT_NEAR(needed, optimum.remote, kOracleTolerance * std::max(optimum.remote, problem.remote))
            << "seed " << seed;

        const std::vector<double> cache = program.cache_of(state, *plan);
        double sum = 0;
        for (const JobPlan& job : plan->jobs) sum += job.steady_bytes_per_second;
        const double largest = largest_sum(problem, cache);
        if (std::isnan(largest)) continue;
        ++summed;
        EXPECT_NEAR(sum, largest, kOracleTolerance * largest) << "seed " << seed;
    }
    EXPECT_GE(summed, kSeedsEach * 95 / 100) << "the program finds no room for equal shares in too many of the cases";
}

TEST_P(Oracle, MaxMinReachesTheLinearProgramsLevel) {
    int bound = 0;
    for (int k = 0; k < kSeedsEach; ++k) {
        const auto seed = static_cast<std::uint64_t>(GetParam() * kSeedsEach + k);
        const ClusterState state = random_state(seed);
        const auto plan = assign(state, {.kind = ObjectiveKind::max_min});
        ASSERT_TRUE(plan.has_value()) << plan.error().message;
        const ClusterLp program(state, *plan);
        const LpProblem& problem = program.problem();
        const double level = max_min_level(problem);
        bound += !std::isinf(level);
        double smallest = std::numeric_limits<double>::infinity();
        for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
            const LpJob& job = problem.jobs[j];
            const double rate = plan->jobs[j].steady_bytes_per_second;
            EXPECT_GE(rate, job.equal_rate * (1 - kOracleTolerance)) << "seed " << seed;
            // A job at f*, at its cap or kept above the level by its guarantee is not at the level.
            if (rate >= job.highest * (1 - kOracleTolerance) || rate <= job.equal_rate * (1 + kOracleTolerance))
                continue;
            smallest = std::min(smallest, rate / (job.weight * job.equal_rate));
        }
        for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
            const LpJob& job = problem.jobs[j];
            const double wanted = std::isinf(level) ? job.highest : level * job.weight * job.equal_rate;
            const double least = std::min(std::max(wanted, job.equal_rate), job.highest);
            EXPECT_GE(plan->jobs[j].steady_bytes_per_second, least * (1 - kOracleTolerance))
                << "seed " << seed << " job " << j;
        }
        if (!std::isinf(level) && !std::isinf(smallest)) {
            EXPECT_NEAR(smallest, level, kOracleTolerance * level) << "seed " << seed;
        }
    }
    EXPECT_GT(bound, kSeedsEach / 4) << "the remote binds in too few of the cases to show anything";
}

// The programs of the assign bench, which have no variable for a job.
TEST_P(Oracle, SmallProgramsSayTheSame) {
    for (int k = 0; k < kSeedsEach; ++k) {
        const auto seed = static_cast<std::uint64_t>(GetParam() * kSeedsEach + k);
        RandomStateOptions options{.operator_limits = false, .node_limits = false, .epochs = false};
        options.peer_groups = false;
        ClusterState state = RandomState(seed, options).make();
        state.remote_bytes_per_second /= 8;
        const double floors = 0.5 * state.remote_bytes_per_second / static_cast<double>(state.jobs.size());
        for (std::size_t j = 0; j < state.jobs.size(); ++j) {
            state.jobs[j].bandwidth_floor_bytes_per_second = (seed + j) % 3 == 0 ? 0 : floors;
        }
        const auto plan = assign(state, {.kind = ObjectiveKind::efficiency});
        ASSERT_TRUE(plan.has_value()) << plan.error().message;
        const ClusterLp program(state, *plan);
        const LpProblem& problem = program.problem();
        const LpSplit split = least_remote(problem, program.ideals(), true);
        const Simplex simplex = seed % 2 == 0 ? Simplex::primal : Simplex::dual;
        const LpSplit small = small_least_remote(problem, program.ideals(), true, simplex);
        ASSERT_TRUE(split.feasible && small.feasible) << "seed " << seed;
        EXPECT_NEAR(small.remote, split.remote, kOracleTolerance * split.remote) << "seed " << seed;
        const double sum = largest_sum(problem, split.cache);
        EXPECT_NEAR(small_largest_sum(problem, split.cache, simplex), sum, kOracleTolerance * sum) << "seed " << seed;
        // Up to this level, every job has its equal share.
        double equal_level = std::numeric_limits<double>::infinity();
        for (const LpJob& job : problem.jobs) equal_level = std::min(equal_level, 1 / job.weight);
        const double level = std::max(equal_level, max_min_level(problem));
        const double small_level = std::max(equal_level, small_max_min_level(problem, simplex));
        EXPECT_TRUE(small_level == level || std::abs(small_level / level - 1) < kOracleTolerance)
            << "seed " << seed << ": " << small_level << " instead of " << level;
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Oracle, testing::Range(0, 10));

}  // namespace
}  // namespace larder::test
