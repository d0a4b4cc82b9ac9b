// A node whose disk or network is too slow for what lies on it exchanges cache with other nodes of its group.

#include "allocator/node_relief.h"

#include <gtest/gtest.h>

#include <numeric>

#include "allocator/assign.h"
#include "allocator/problem.h"

namespace larder::test {
namespace {

using namespace allocator;
using Quotas = std::vector<std::vector<NodeCache>>;

// Two nodes with room for one dataset each, and a job without cache of its own for each dataset. The first dataset is
// read ten times as fast as the second.
ClusterState two_nodes() {
    ClusterState state{.remote_bytes_per_second = 1e9};
    for (const char* name : {"slow", "fast", "workers"}) {
        state.nodes.push_back({.name = name, .gpus = 8, .disk_bytes = 1'000'000'000});
    }
    state.nodes.back().disk_bytes = 0;
    for (const char* name : {"hot", "cold"}) {
        state.datasets.push_back({.name = name, .size_bytes = 1'000'000'000});
    }
    for (std::uint32_t j = 0; j < 2; ++j) {
        state.jobs.push_back({.name = "job-" + std::to_string(j), .dataset = j, .gpus = 1});
        state.jobs.back().ideal_bytes_per_second = j == 0 ? 1e9 : 1e8;
        state.jobs.back().placement = {{.node = 2, .gpus = 1}};
    }
    return state;
}

const Quotas kHotOnSlow{{{.node = 0, .disk_bytes = 1'000'000'000}}, {{.node = 1, .disk_bytes = 1'000'000'000}}};

std::uint64_t bytes_on(const Quotas& quotas, std::uint32_t dataset, std::uint32_t node) {
    std::uint64_t bytes = 0;
    for (const NodeCache& quota : quotas[dataset]) bytes += quota.node == node ? quota.bytes() : 0;
    return bytes;
}

Quotas relieved(const ClusterState& state) {
    Problem problem = make_problem(state);
    // Bounds of the nodes are no part of these tests' equal shares.
    problem.equal_rates = problem.ideals;
    return relieve_nodes(state, problem, kHotOnSlow);
}

TEST(NodeRelief, NodesThatCarryTheirLoadKeepTheirCache) {
    EXPECT_EQ(relieved(two_nodes()), kHotOnSlow);
}

TEST(NodeRelief, SlowDiskGetsLessReadBytes) {
    ClusterState state = two_nodes();
    state.nodes[0].disk_read_bytes_per_second = 5.5e8;
    const Quotas quotas = relieved(state);
    // Half of each dataset: 5e8 and 0.5e8 bytes per second.
    EXPECT_NEAR(static_cast<double>(bytes_on(quotas, 0, 0)), 5e8, 10);
    EXPECT_NEAR(static_cast<double>(bytes_on(quotas, 1, 0)), 5e8, 10);
    for (std::uint32_t dataset = 0; dataset < 2; ++dataset) {
        EXPECT_EQ(bytes_on(quotas, dataset, 0) + bytes_on(quotas, dataset, 1), 1'000'000'000U);
    }
    EXPECT_EQ(bytes_on(quotas, 0, 0) + bytes_on(quotas, 1, 0), 1'000'000'000U);
}

TEST(NodeRelief, SlowOutgoingNetworkGetsLessReadBytes) {
    ClusterState state = two_nodes();
    state.nodes[0].nic_bytes_per_second = 2.8e8;
    const Quotas quotas = relieved(state);
    EXPECT_NEAR(static_cast<double>(bytes_on(quotas, 0, 0)), 2e8, 10);
    EXPECT_NEAR(static_cast<double>(bytes_on(quotas, 1, 0)), 8e8, 10);
}

TEST(NodeRelief, FastNodeTakesNoMoreThanItCarries) {
    ClusterState state = two_nodes();
    state.nodes[0].disk_read_bytes_per_second = 1e8;
    state.nodes[1].disk_read_bytes_per_second = 3.7e8;
    const Quotas quotas = relieved(state);
    EXPECT_NEAR(static_cast<double>(bytes_on(quotas, 0, 1)), 3e8, 10);
}

TEST(NodeRelief, FreeRoomTakesBytesForNothing) {
    ClusterState state = two_nodes();
    state.nodes[1].disk_bytes = 2'000'000'000;
    state.nodes[0].disk_read_bytes_per_second = 4e8;
    const Quotas quotas = relieved(state);
    EXPECT_NEAR(static_cast<double>(bytes_on(quotas, 0, 0)), 4e8, 10);
    EXPECT_EQ(bytes_on(quotas, 1, 0), 0U);
    EXPECT_EQ(bytes_on(quotas, 1, 1), 1'000'000'000U);
}

TEST(NodeRelief, HeldQuotasStay) {
    ClusterState state = two_nodes();
    state.nodes[0].disk_read_bytes_per_second = 5.5e8;
    state.datasets[0].held = kHotOnSlow[0];
    EXPECT_EQ(relieved(state), kHotOnSlow);
    state.datasets[0].held.clear();
    state.datasets[1].held = kHotOnSlow[1];
    EXPECT_EQ(relieved(state), kHotOnSlow);
}

TEST(NodeRelief, OtherGroupsGetNothing) {
    ClusterState state = two_nodes();
    state.nodes[0].disk_read_bytes_per_second = 5.5e8;
    state.nodes[1].peer_group = 7;
    state.jobs[1].placement = {{.node = 1, .gpus = 1}};
    EXPECT_EQ(relieved(state), kHotOnSlow);
}

// A tenth of the nodes has slow disks and networks. The plan needs no quota of every dataset on every node.
TEST(NodeRelief, PlanKeepsEqualSharesWithFewQuotas) {
    ClusterState state;
    constexpr std::uint32_t kNodes = 40, kDatasets = 40, kJobs = 400;
    for (std::uint32_t n = 0; n < kNodes; ++n) {
        const bool slow = n % 10 == 0;
        state.nodes.push_back({.name = "node-" + std::to_string(n),
                               .gpus = 10,
                               .disk_bytes = 100'000'000'000,
                               .disk_read_bytes_per_second = slow ? 5e8 : 12e9,
                               .nic_bytes_per_second = slow ? 1e9 : 12.5e9});
    }
    double ideals = 0;
    for (std::uint32_t i = 0; i < kDatasets; ++i) {
        state.datasets.push_back(
            {.name = "dataset-" + std::to_string(i), .size_bytes = 10'000'000'000U * (1 + i * 7 % 40)});
    }
    for (std::uint32_t j = 0; j < kJobs; ++j) {
        state.jobs.push_back({.name = "job-" + std::to_string(j), .dataset = j * 17 % kDatasets, .gpus = 1});
        state.jobs.back().ideal_bytes_per_second = 2e7 * (1 + j * 13 % 50);
        state.jobs.back().placement = {{.node = j % kNodes, .gpus = 1}};
        ideals += state.jobs.back().ideal_bytes_per_second;
    }
    state.remote_bytes_per_second = ideals / 8;
    for (const ObjectiveKind kind : {ObjectiveKind::efficiency, ObjectiveKind::max_min}) {
        const auto plan = assign(state, {.kind = kind});
        ASSERT_TRUE(plan) << plan.error().message;
        std::size_t quotas = 0;
        for (const DatasetPlan& dataset : plan->datasets) quotas += dataset.quotas.size();
        EXPECT_LT(quotas, 2 * (kJobs + kNodes));
        for (const JobPlan& job : plan->jobs) {
            EXPECT_GE(job.steady_bytes_per_second, job.equal_share_bytes_per_second * (1 - 1e-6));
        }
    }
}

}  // namespace
}  // namespace larder::test
