#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/assign.h"

namespace larder::allocator {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// One node of 100 bytes of memory and 50 of disk. No job runs.
ClusterState idle_cluster(std::vector<std::uint64_t> sizes) {
    ClusterState state;
    state.nodes.push_back({.name = "n", .memory_bytes = 100, .disk_bytes = 50});
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        state.datasets.push_back({.name = std::string(1, static_cast<char>('a' + i)), .size_bytes = sizes[i]});
        state.datasets.back().quotas.push_back({.node = 0});
    }
    return state;
}

Plan empty_plan(const ClusterState& state) {
    Plan plan;
    plan.datasets.resize(state.datasets.size());
    plan.jobs.resize(state.jobs.size());
    return plan;
}

TEST(SpareRoom, IsSplitEquallyUpToDatasetSize) {
    const ClusterState state = idle_cluster({10, 400, 400});
    Plan plan = empty_plan(state);
    give_spare_room(state, plan);
    EXPECT_THAT(plan.datasets[0].quotas, ElementsAre(NodeCache{.node = 0, .memory_bytes = 10}));
    EXPECT_THAT(plan.datasets[1].quotas, ElementsAre(NodeCache{.node = 0, .memory_bytes = 45, .disk_bytes = 25}));
    EXPECT_THAT(plan.datasets[2].quotas, ElementsAre(NodeCache{.node = 0, .memory_bytes = 45, .disk_bytes = 25}));
    EXPECT_EQ(plan.datasets[1].quota_bytes, 70u);
}

TEST(SpareRoom, ChangesNoQuotaOfDatasetsInUse) {
    ClusterState state = idle_cluster({400, 400});
    state.jobs.push_back({.name = "j", .dataset = 0, .placement = {{.node = 0}}});
    Plan plan = empty_plan(state);
    plan.jobs[0].running = true;
    plan.datasets[0] = {.quota_bytes = 60, .quotas = {{.node = 0, .memory_bytes = 60}}};
    give_spare_room(state, plan);
    EXPECT_EQ(plan.datasets[0].quota_bytes, 60u);
    EXPECT_THAT(plan.datasets[1].quotas, ElementsAre(NodeCache{.node = 0, .memory_bytes = 40, .disk_bytes = 50}));
}

TEST(SpareRoom, RespectsCaps) {
    ClusterState state = idle_cluster({400, 400});
    state.datasets[0].quota_cap_bytes = 0;
    state.datasets[1].quota_cap_bytes = 30;
    Plan plan = empty_plan(state);
    give_spare_room(state, plan);
    EXPECT_THAT(plan.datasets[0].quotas, IsEmpty());
    EXPECT_EQ(plan.datasets[1].quota_bytes, 30u);
}

TEST(SpareRoom, GivesDatasetAtMostItsSizeWithinPeerGroup) {
    ClusterState state = idle_cluster({120});
    state.nodes.push_back({.name = "m", .memory_bytes = 100, .peer_group = 0});
    state.datasets[0].quotas.push_back({.node = 1});
    Plan plan = empty_plan(state);
    give_spare_room(state, plan);
    EXPECT_EQ(plan.datasets[0].quota_bytes, 120u);
    state.nodes[1].peer_group = 1;
    plan = empty_plan(state);
    give_spare_room(state, plan);
    EXPECT_EQ(plan.datasets[0].quota_bytes, 220u) << "nodes that cannot read each other's cache each need their own";
}

TEST(SpareRoom, IsSplitAgainWithEveryPlan) {
    ClusterState state = idle_cluster({400});
    state.remote_bytes_per_second = 1e6;
    const Objective objective{.spare_room = true, .place_jobs = false};
    auto plan = assign(state, objective);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->datasets[0].quota_bytes, 150u);
    state.datasets[0].quotas = plan->datasets[0].quotas;
    state.datasets.push_back({.name = "b", .size_bytes = 400, .quotas = {{.node = 0}}});
    plan = assign(state, objective);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->datasets[0].quota_bytes, 75u);
    EXPECT_EQ(plan->datasets[1].quota_bytes, 75u);
}

TEST(SpareRoom, IsGivenOnlyOnNodesThatHaveTheDataset) {
    ClusterState state = idle_cluster({400});
    state.nodes.push_back({.name = "m", .memory_bytes = 100, .peer_group = 1});
    Plan plan = empty_plan(state);
    give_spare_room(state, plan);
    EXPECT_THAT(plan.datasets[0].quotas, ElementsAre(NodeCache{.node = 0, .memory_bytes = 100, .disk_bytes = 50}));
}

}  // namespace
}  // namespace larder::allocator
