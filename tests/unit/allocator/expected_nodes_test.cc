// The cache of waiting jobs goes to the nodes where their scheduler expects to start them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "allocator/assign.h"
#include "allocator/cache_split.h"
#include "allocator/problem.h"
#include "tests/unit/allocator/by_hand.h"

namespace larder::test {
namespace {

using namespace allocator;

// Nodes of 100 GB, with a dataset of 60 GB that waiting jobs reserve all of. No job runs.
ClusterState waiting_for_nodes(std::vector<std::uint32_t> expected_on, bool are_peers, std::uint32_t nodes = 3) {
    ClusterState state{.remote_bytes_per_second = kBytesPerGB};
    ClusterDataset dataset{.name = "A", .size_bytes = bytes(60), .quota_floor_bytes = bytes(60)};
    for (std::uint32_t n = 0; n < nodes; ++n) {
        state.nodes.push_back({.name = std::string(1, static_cast<char>('a' + n)),
                               .gpus = 8,
                               .disk_bytes = bytes(100),
                               .peer_group = are_peers ? 0 : n});
        dataset.quotas.push_back({.node = n});
        dataset.cached.push_back({.node = n});
    }
    dataset.expected_on = std::move(expected_on);
    state.datasets.push_back(std::move(dataset));
    return state;
}

// Returns the quotas of the first dataset by node, in GB.
std::vector<double> quotas_by_node(const ClusterState& state, const Plan& plan) {
    std::vector<double> quotas(state.nodes.size());
    for (const NodeCache& quota : plan.datasets[0].quotas) {
        quotas[quota.node] = static_cast<double>(quota.bytes()) / kBytesPerGB;
    }
    return quotas;
}

void expect_by_node(const ClusterState& state, const std::vector<double>& expected) {
    const std::vector<double> quotas = quotas_by_node(state, planned(state, ObjectiveKind::max_min));
    ASSERT_EQ(quotas.size(), expected.size());
    for (std::size_t n = 0; n < quotas.size(); ++n) EXPECT_NEAR(quotas[n], expected[n], kTolerance) << "node " << n;
}

TEST(ExpectedNodes, CachesThatAreNotSharedHaveTheFloorWhereJobsAreExpected) {
    expect_by_node(waiting_for_nodes({}, false), {20, 20, 20});
    expect_by_node(waiting_for_nodes({1}, false), {0, 60, 0});
    expect_by_node(waiting_for_nodes({0, 2}, false), {30, 0, 30});
}

TEST(ExpectedNodes, PeerGroupHasTheFloorOnTheNodesWhereJobsAreExpected) {
    expect_by_node(waiting_for_nodes({2}, true), {0, 0, 60});
    expect_by_node(waiting_for_nodes({0, 2}, true), {30, 0, 30});
}

TEST(ExpectedNodes, GroupsShareTheFloorByTheNumberOfExpectedNodes) {
    ClusterState state = waiting_for_nodes({0, 1, 3}, false, 4);
    state.nodes[1].peer_group = state.nodes[0].peer_group;
    expect_by_node(state, {20, 20, 0, 20});
}

TEST(ExpectedNodes, BytesThatFindNoRoomThereGoElsewhere) {
    for (const bool are_peers : {false, true}) {
        ClusterState state = waiting_for_nodes({1}, are_peers, 2);
        state.nodes[1].disk_bytes = bytes(25);
        expect_by_node(state, {35, 25});
        state.nodes[1].disk_bytes = 0;
        expect_by_node(state, {60, 0});
        // An operator holds 10 GB there.
        state.nodes[1].disk_bytes = bytes(100);
        state.datasets[0].held = {{.node = 1, .disk_bytes = bytes(10)}};
        expect_by_node(state, {50, 10});
    }
}

TEST(ExpectedNodes, CachedBytesCountWhereTheyAre) {
    for (const bool are_peers : {false, true}) {
        ClusterState state = waiting_for_nodes({1}, are_peers);
        state.datasets[0].cached[0].disk_bytes = bytes(25);
        expect_by_node(state, {25, 35, 0});
        state.datasets[0].cached[0].disk_bytes = bytes(60);
        expect_by_node(state, {60, 0, 0});
    }
}

TEST(ExpectedNodes, ReadersOfTheGroupComeFirst) {
    ClusterState state = waiting_for_nodes({1}, true);
    state.nodes[2].disk_bytes = bytes(40);
    add_job(state, "reads", 0, 1, 2);
    expect_by_node(state, {0, 20, 40});
}

// Quotas that the search for busy disks and networks has made may lack a floor.
TEST(ExpectedNodes, FloorThatQuotasLackIsPlacedWhereJobsAreExpected) {
    ClusterState state = waiting_for_nodes({2}, true);
    state.nodes[2].disk_bytes = bytes(40);
    std::vector<std::vector<NodeCache>> quotas = {{{.node = 0, .disk_bytes = bytes(10)}}};
    restore_floors(state, make_problem(state), quotas);
    ASSERT_EQ(quotas[0].size(), 3);
    EXPECT_EQ(quotas[0][0].bytes() + quotas[0][1].bytes(), bytes(20));
    EXPECT_EQ(quotas[0][2].bytes(), bytes(40));
}

TEST(ExpectedNodes, OnlyBytesThatAreNotCachedYetChangeQuotasInForce) {
    for (const bool are_peers : {false, true}) {
        ClusterState state = waiting_for_nodes({0}, are_peers);
        Plan plan = planned(state, {.kind = ObjectiveKind::max_min});
        state.datasets[0].quotas = plan.datasets[0].quotas;
        EXPECT_TRUE(planned(state, {.kind = ObjectiveKind::max_min}).kept_quotas);

        state.datasets[0].expected_on = {1};
        state.datasets[0].cached[0].disk_bytes = bytes(60);
        EXPECT_TRUE(planned(state, {.kind = ObjectiveKind::max_min}).kept_quotas) << "all of it is cached";
        state.datasets[0].cached[0].disk_bytes = bytes(20);
        plan = planned(state, {.kind = ObjectiveKind::max_min});
        EXPECT_FALSE(plan.kept_quotas);
        EXPECT_EQ(plan.moved_bytes, bytes(40)) << "nothing is fetched twice";
        EXPECT_NEAR(quotas_by_node(state, plan)[1], 40, kTolerance);

        state.datasets[0].quotas = plan.datasets[0].quotas;
        if (!are_peers) state.datasets[0].quotas.push_back({.node = 2});
        EXPECT_TRUE(planned(state, {.kind = ObjectiveKind::max_min}).kept_quotas);
        state.datasets[0].expected_on = {};
        if (are_peers) {
            EXPECT_TRUE(planned(state, {.kind = ObjectiveKind::max_min}).kept_quotas);
        }
    }
}

}  // namespace
}  // namespace larder::test
