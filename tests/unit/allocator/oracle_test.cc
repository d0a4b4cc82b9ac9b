// assign() against linear programs solved by CLP: the same optimum, on random clusters where the remote and the cache
// are what binds.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "allocator/assign.h"
#include "bench/oracle/cluster_lp.h"
#include "bench/oracle/lp.h"
#include "tests/unit/allocator/random_state.h"

namespace larder::test {
namespace {

using namespace allocator;
using namespace bench::oracle;

constexpr double kSame = 1e-6;

// The steady state only: no epochs under way, no operator's or node's limits.
ClusterState random_state(std::uint64_t seed) {
    RandomStateOptions options{.operator_limits = false, .node_limits = false, .epochs = false};
    if (seed % 4 == 0)
        options = {.jobs_max = 200,
                   .datasets_max = 40,
                   .nodes_max = 20,
                   .operator_limits = false,
                   .node_limits = false,
                   .epochs = false};
    ClusterState state = RandomState(seed, options).make();
    state.remote_bytes_per_second /= 8;
    return state;
}

double remote_for(const Plan& plan, const std::vector<double>& rates) {
    double sum = 0;
    for (std::size_t j = 0; j < rates.size(); ++j) sum += rates[j] * (1 - plan.jobs[j].steady_hit_ratio);
    return sum;
}

class Oracle : public testing::TestWithParam<int> {
protected:
    static constexpr int kSeedsEach = 100;
};

TEST_P(Oracle, EfficiencyIsTheLinearProgramsOptimum) {
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
        const double needed = remote_for(*plan, rates);
        EXPECT_NEAR(needed, optimum.remote, kSame * std::max(optimum.remote, problem.remote)) << "seed " << seed;

        const std::vector<double> cache = program.cache_of(state, *plan);
        double sum = 0;
        for (const JobPlan& job : plan->jobs) sum += job.steady_bytes_per_second;
        const double largest = largest_sum(problem, cache);
        if (!std::isnan(largest)) {
            EXPECT_NEAR(sum, largest, kSame * largest) << "seed " << seed;
        }
    }
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
            EXPECT_GE(rate, job.equal_rate * (1 - kSame)) << "seed " << seed;
            // Who is at f* or is held up by the guarantee is not at the level.
            if (rate >= job.ideal * (1 - kSame) || rate <= job.equal_rate * (1 + kSame)) continue;
            smallest = std::min(smallest, rate / (job.weight * job.equal_rate));
        }
        for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
            const LpJob& job = problem.jobs[j];
            const double least = std::clamp(std::isinf(level) ? job.ideal : level * job.weight * job.equal_rate,
                                            job.equal_rate, job.ideal);
            EXPECT_GE(plan->jobs[j].steady_bytes_per_second, least * (1 - kSame)) << "seed " << seed << " job " << j;
        }
        if (!std::isinf(level) && !std::isinf(smallest)) {
            EXPECT_NEAR(smallest, level, kSame * level) << "seed " << seed;
        }
    }
    EXPECT_GT(bound, kSeedsEach / 4) << "the remote binds in too few of the cases to show anything";
}

INSTANTIATE_TEST_SUITE_P(Seeds, Oracle, testing::Range(0, 10));

}  // namespace
}  // namespace larder::test
