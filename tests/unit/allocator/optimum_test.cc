// Compares plans with an independent program for small clusters where disks, networks, peer groups, operators' limits
// and last epochs count.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "allocator/assign.h"
#include "tests/oracle/small_cluster.h"
#include "tests/oracle/steady_optimum.h"

namespace larder::test {
namespace {

using namespace allocator;

constexpr std::uint64_t kSeeds = 200;

// Returns the sum of values * rates of a plan for the largest one.
double planned_sum(const ClusterState& state, ObjectiveKind kind) {
    const auto plan = assign(state, {.kind = kind});
    EXPECT_TRUE(plan) << plan.error().message;
    double sum = 0;
    if (!plan) return sum;
    const std::vector<double> values = oracle::values_of(state, kind);
    for (std::size_t j = 0; j < values.size(); ++j) sum += values[j] * plan->jobs[j].steady_bytes_per_second;
    return sum;
}

void expect_largest_sum(std::uint64_t seed, ObjectiveKind kind) {
    const ClusterState state = oracle::small_cluster(seed);
    const double sum = planned_sum(state, kind);
    const std::vector<double> values = oracle::values_of(state, kind);
    EXPECT_GE(sum, oracle::largest_sum_of_rates(state, values, sum, {.programs = 300}).reached * 0.99)
        << "seed " << seed;
}

TEST(Optimum, EqualSharesAreThoseOfTheIndependentProgram) {
    int bound_by_a_node = 0;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        ClusterState state = oracle::small_cluster(seed);
        const auto plan = assign(state, {.kind = ObjectiveKind::max_min});
        ASSERT_TRUE(plan) << plan.error().message;
        const std::vector<double> equal = oracle::equal_share_rates(state);
        for (ClusterNode& node : state.nodes) {
            node.disk_read_bytes_per_second = kUnlimited;
            node.nic_bytes_per_second = kUnlimited;
        }
        const std::vector<double> unbound = oracle::equal_share_rates(state);
        for (std::size_t j = 0; j < equal.size(); ++j) {
            EXPECT_NEAR(plan->jobs[j].equal_share_bytes_per_second, equal[j], 1e-9 * equal[j]) << "seed " << seed;
            bound_by_a_node += equal[j] < unbound[j] * 0.99;
        }
    }
    EXPECT_GT(bound_by_a_node, 20) << "nodes bind in too few of the cases to show anything";
}

// 16 of these clusters miss more than 2 % of the best level if no quotas are searched that nodes can serve.
TEST(Optimum, MaxMinPlansReachTheBestLevel) {
    constexpr std::uint64_t kClusters = 100;
    for (std::uint64_t seed = 0; seed < kClusters; ++seed) {
        const ClusterState state = oracle::small_cluster(seed);
        const auto plan = assign(state, {.kind = ObjectiveKind::max_min});
        ASSERT_TRUE(plan) << plan.error().message;
        std::vector<double> rates;
        rates.reserve(plan->jobs.size());
        for (const JobPlan& job : plan->jobs) rates.push_back(job.steady_bytes_per_second);
        EXPECT_GE(oracle::level_of(state, rates), oracle::largest_level(state) * 0.999) << "seed " << seed;
    }
}

// Without linear programs several of these clusters miss more than 5 % of the largest sum.
TEST(Optimum, ThroughputPlansReachTheLargestSum) {
    constexpr std::uint64_t kClusters = 60;
    for (std::uint64_t seed = 0; seed < kClusters; ++seed) expect_largest_sum(seed, ObjectiveKind::throughput);
}

// The dataset whose cache makes the largest sum is larger than all cache, and some job falls below its equal share
// without a part of that cache.
TEST(Optimum, LargestSumLeavesTheCacheThatEqualSharesNeed) {
    expect_largest_sum(2753, ObjectiveKind::throughput);
    expect_largest_sum(6888, ObjectiveKind::throughput);
    expect_largest_sum(2563, ObjectiveKind::utilisation);
}

// Nodes bind, and the search sees sums that are larger than the largest, of plans that leave jobs below their equal
// shares.
TEST(Optimum, SumsBelowEqualSharesDoNotHideTheLargestSum) {
    expect_largest_sum(9302, ObjectiveKind::throughput);
    expect_largest_sum(9302, ObjectiveKind::utilisation);
}

TEST(Optimum, EfficiencySavesTheMostRemoteBandwidth) {
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        ClusterState state = oracle::small_cluster(seed);
        for (ClusterNode& node : state.nodes) {
            node.disk_read_bytes_per_second = kUnlimited;
            node.nic_bytes_per_second = kUnlimited;
        }
        const auto plan = assign(state, {.kind = ObjectiveKind::efficiency});
        ASSERT_TRUE(plan) << plan.error().message;
        double saved = 0;
        double ideals = 0;
        for (std::size_t j = 0; j < state.jobs.size(); ++j) {
            const double ideal = state.jobs[j].ideal_bytes_per_second;
            const double floor = state.jobs[j].bandwidth_floor_bytes_per_second;
            saved += std::max(ideal, floor) - std::max(ideal * (1 - plan->jobs[j].steady_hit_ratio), floor);
            ideals += ideal;
        }
        EXPECT_NEAR(saved, oracle::largest_saving(state), 1e-5 * ideals) << "seed " << seed;
    }
}

TEST(Optimum, NoPlanExceedsTheProgramsBound) {
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        const ClusterState state = oracle::small_cluster(seed);
        const double sum = planned_sum(state, ObjectiveKind::throughput);
        const std::vector<double> values(state.jobs.size(), 1);
        const oracle::LargestSum best = oracle::largest_sum_of_rates(state, values, 0, {.programs = 1});
        EXPECT_LE(sum, best.relaxed * (1 + 1e-5)) << "seed " << seed;
    }
}

}  // namespace
}  // namespace larder::test
