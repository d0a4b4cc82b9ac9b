#include "scheduler/cells/cells.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace larder::scheduler::tests {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

struct Share {
    std::uint32_t level;
    std::uint32_t count;
};

// One hierarchy: switches of 2 GPUs (level 1), nodes of 2 switches (level 2), racks of several nodes (level 3).
class SmallCluster {
public:
    SmallCluster(std::uint32_t racks, std::uint32_t nodes_in_rack, const std::vector<std::vector<Share>>& shares) {
        HierarchyConfig hierarchy{.name = "h",
                                  .gpu_type = "a",
                                  .levels = {{"switch", 2}, {"node", 2}, {"rack", nodes_in_rack}},
                                  .node_level = 2,
                                  .nodes = {}};
        for (std::uint32_t n = 0; n < racks * nodes_in_rack; ++n) hierarchy.nodes.push_back("n" + std::to_string(n));
        config.hierarchies.push_back(hierarchy);
        std::vector<std::string> tenants;
        for (const auto& share : shares) {
            tenants.push_back("t" + std::to_string(tenants.size()));
            config.virtual_clusters.push_back({.name = tenants.back(), .cells = {}, .pinned = {}});
            for (const Share& part : share) {
                config.virtual_clusters.back().cells.push_back(
                    {.hierarchy = 0, .level = part.level, .count = part.count});
            }
        }
        const auto good = check_cells(config, "test");
        EXPECT_TRUE(good) << (good ? "" : good.error().message);
        cells = std::move(*Cells::create(config, cluster_of(config), tenants));
    }

    std::optional<Placed> place(JobId job, std::uint32_t tenant, std::uint32_t gpus, bool opportunistic = false) {
        auto placed = cells->place(request(job, tenant, gpus, 0, opportunistic));
        EXPECT_TRUE(cells->is_sound());
        return placed;
    }
    void release(JobId job) {
        cells->release(job);
        EXPECT_TRUE(cells->is_sound());
    }
    static PlaceRequest request(JobId job, std::uint32_t tenant, std::uint32_t gpus, std::int32_t priority = 0,
                                bool opportunistic = false) {
        return {.job = job,
                .tenant = tenant,
                .gpus = gpus,
                .gpu_type = 0,
                .priority = priority,
                .opportunistic = opportunistic,
                .near = {}};
    }
    std::uint32_t doomed(std::uint32_t tenant) const {
        std::uint32_t count = 0;
        for (const VirtualCellState& state : cells->virtual_cells()) {
            count += state.cluster == tenant && state.cell.doomed ? 1 : 0;
        }
        return count;
    }

    CellConfig config;
    std::unique_ptr<Cells> cells;
};

std::vector<std::uint32_t> nodes_of(const Placement& placement) {
    std::vector<std::uint32_t> nodes;
    for (const NodeGpus& share : placement) nodes.push_back(share.node);
    return nodes;
}

TEST(Cells, SmallJobsOfOneTenantLeaveTheOtherItsWholeNode) {
    SmallCluster small(1, 2, {{{2, 1}}, {{2, 1}}});
    for (JobId job = 0; job < 4; ++job) {
        const auto placed = small.place(job, 0, 1);
        ASSERT_TRUE(placed);
        EXPECT_THAT(nodes_of(placed->placement), ElementsAre(0));
    }
    EXPECT_FALSE(small.place(4, 0, 1));  // GPUs are free, but belong to the other tenant
    EXPECT_EQ(small.cells->free_gpus(0), 4U);
    const auto whole = small.place(5, 1, 4);
    ASSERT_TRUE(whole);
    EXPECT_THAT(whole->placement, ElementsAre(NodeGpus{1, 0xf}));
}

TEST(Cells, TenantWithoutVirtualClusterHasNoClaim) {
    SmallCluster small(1, 2, {{{2, 1}}});
    small.cells->name_tenant(3, "stranger");
    EXPECT_FALSE(small.place(0, 3, 1));
    EXPECT_TRUE(small.place(1, 3, 1, true));
    small.cells->name_tenant(3, "t0");
    EXPECT_TRUE(small.place(2, 3, 4));
}

TEST(Cells, CellsAreSplitAndMerge) {
    SmallCluster small(2, 2, {{{1, 2}}, {{3, 1}}});
    ASSERT_TRUE(small.place(0, 0, 2));
    ASSERT_TRUE(small.place(1, 0, 2));
    const auto rack = small.place(2, 1, 8);
    ASSERT_TRUE(rack);
    EXPECT_THAT(nodes_of(rack->placement), ElementsAre(2, 3));
    small.release(0);
    small.release(1);
    small.release(2);
    const auto again = small.place(3, 1, 8);
    ASSERT_TRUE(again);
    EXPECT_THAT(nodes_of(again->placement), ElementsAre(0, 1));
}

TEST(Cells, GangIsPlacedOnFewNodesCloseTogether) {
    SmallCluster small(4, 4, {{{3, 3}}});
    ASSERT_TRUE(small.place(0, 0, 4 * 2));  // half of rack 0
    const auto gang = small.place(1, 0, 4 * 3);
    ASSERT_TRUE(gang);
    EXPECT_THAT(nodes_of(gang->placement), ElementsAre(4, 5, 6));
    const auto pair = small.place(2, 0, 4 * 2);
    ASSERT_TRUE(pair);
    EXPECT_THAT(nodes_of(pair->placement), ElementsAre(2, 3));
    const auto one = small.place(3, 0, 2);
    ASSERT_TRUE(one);
    EXPECT_EQ(one->placement.size(), 1U);
    EXPECT_TRUE(one->placement[0].gpus == 0b11 || one->placement[0].gpus == 0b1100);  // behind one switch
}

TEST(Cells, CellsOfOneGangAreAdjacent) {
    SmallCluster small(4, 4, {{{2, 2}}, {{2, 4}}});
    ASSERT_TRUE(small.place(0, 0, 4));
    ASSERT_TRUE(small.place(1, 0, 4));
    const auto gang = small.place(2, 1, 16);
    ASSERT_TRUE(gang);
    EXPECT_EQ(gang->placement.size(), 4U);
    small.release(0);
    const auto pair = small.place(3, 0, 4);
    ASSERT_TRUE(pair);
    EXPECT_THAT(nodes_of(pair->placement), ElementsAre(0));
}

TEST(Cells, OpportunisticJobsRunAnywhereAndStopForAnyClaim) {
    SmallCluster small(1, 2, {{{2, 1}}, {{2, 1}}});
    ASSERT_TRUE(small.place(0, 0, 8, true));
    EXPECT_FALSE(small.place(1, 0, 1, true));
    const auto placed = small.place(2, 1, 1);
    ASSERT_TRUE(placed);
    EXPECT_THAT(placed->evicted, ElementsAre(0));
    EXPECT_EQ(small.cells->free_gpus(0), 7U);
}

TEST(Cells, ClaimIsPlacedWhereNoJobMustStop) {
    SmallCluster small(2, 2, {{{2, 1}}});
    ASSERT_TRUE(small.place(0, 0, 4, true));
    const auto placed = small.place(1, 0, 4);
    ASSERT_TRUE(placed);
    EXPECT_THAT(placed->evicted, IsEmpty());
}

TEST(Cells, PinnedCellsAreUsedByTheirOwnerOnly) {
    SmallCluster small(1, 2, {{{2, 1}}, {}});
    small.config.virtual_clusters[1].pinned.push_back({.hierarchy = 0, .level = 2, .index = 0});
    const std::vector<std::string> tenants{"t0", "t1"};
    small.cells = std::move(*Cells::create(small.config, cluster_of(small.config), tenants));
    EXPECT_THAT(nodes_of(small.place(0, 0, 1)->placement), ElementsAre(1));
    EXPECT_FALSE(small.place(1, 0, 4));
    EXPECT_THAT(nodes_of(small.place(2, 1, 4)->placement), ElementsAre(0));
}

TEST(Cells, BadNodesAreAvoided) {
    SmallCluster small(2, 2, {{{2, 2}}, {{3, 1}}});
    small.cells->set_usable(0, false);
    // Tenant 0 gets the other node of the rack with the bad node. The bad node belongs to no tenant any more, so its
    // next request fails.
    EXPECT_THAT(nodes_of(small.place(0, 0, 4)->placement), ElementsAre(1));
    EXPECT_FALSE(small.place(1, 0, 4));
    EXPECT_THAT(nodes_of(small.place(2, 1, 8)->placement), ElementsAre(2, 3));
    small.cells->set_usable(0, true);
    EXPECT_THAT(nodes_of(small.place(3, 0, 4)->placement), ElementsAre(0));
}

// There is one spare rack, so a bad node costs no tenant anything as long as the healthy racks are not split.
TEST(Cells, WholeRacksAreLeftToTheirOwners) {
    SmallCluster small(3, 2, {{{2, 3}}, {{3, 1}}});
    small.cells->set_usable(5, false);
    ASSERT_TRUE(small.place(0, 0, 4));
    ASSERT_TRUE(small.place(1, 0, 4));
    ASSERT_TRUE(small.place(2, 0, 4));
    const auto rack = small.place(3, 1, 8);
    ASSERT_TRUE(rack);
    EXPECT_EQ(rack->placement.size(), 2U);
}

TEST(Cells, SpareHealthyRackMayBeSplit) {
    SmallCluster small(2, 2, {{{2, 1}}, {{2, 1}}});
    ASSERT_TRUE(small.place(0, 1, 4));  // node 0: the free list has node 1 and rack 1
    small.cells->set_usable(1, false);
    // Node 2 is not in the smallest cell that could be split.
    EXPECT_THAT(nodes_of(small.place(1, 0, 4)->placement), ElementsAre(2));
}

TEST(Cells, CellsThatTenantsCannotGetCountAsDoomed) {
    SmallCluster small(1, 4, {{{2, 3}}, {{2, 1}}});
    small.cells->set_usable(0, false);
    EXPECT_EQ(small.doomed(0), 0U);  // each tenant alone can still get all its cells
    small.cells->set_usable(1, false);
    EXPECT_EQ(small.doomed(0), 1U);
    EXPECT_EQ(small.doomed(1), 0U);
    ASSERT_TRUE(small.place(0, 1, 4));
    EXPECT_EQ(small.doomed(0), 2U);
    EXPECT_FALSE(small.place(1, 0, 8));
    EXPECT_TRUE(small.place(2, 0, 4));
    small.release(0);
    small.release(2);
    small.cells->set_usable(1, true);
    EXPECT_EQ(small.doomed(0), 0U);
    EXPECT_TRUE(small.place(3, 0, 12));
}

TEST(Cells, ClaimIsGivenUpAndTakenUpAgain) {
    SmallCluster small(1, 2, {{{2, 1}}, {{2, 1}}});
    ASSERT_TRUE(small.place(0, 0, 4));
    EXPECT_TRUE(small.cells->set_opportunistic(0, true));
    ASSERT_TRUE(small.place(1, 0, 4));
    EXPECT_FALSE(small.cells->set_opportunistic(0, false));
    small.release(1);
    EXPECT_TRUE(small.cells->set_opportunistic(0, false));
    EXPECT_TRUE(small.cells->is_sound());
}

TEST(Cells, PlaceAtTakesExactlyTheGivenGpus) {
    SmallCluster small(1, 2, {{{2, 1}}, {{1, 1}}});
    EXPECT_TRUE(small.cells->place_at(SmallCluster::request(0, 0, 2), {{1, 0b0110}}));
    EXPECT_FALSE(small.cells->place_at(SmallCluster::request(1, 1, 1), {{1, 0b0001}}));  // the node is another tenant's
    EXPECT_FALSE(small.cells->place_at(SmallCluster::request(1, 1, 2), {{0, 0b0110}}));  // more than one switch
    EXPECT_TRUE(small.cells->place_at(SmallCluster::request(1, 1, 2), {{0, 0b1100}}));
    EXPECT_FALSE(small.cells->place_at(SmallCluster::request(2, 0, 1), {{1, 0b0110}}));  // taken
    EXPECT_TRUE(small.cells->is_sound());
}

// If a bound cell is too small for the jobs that are placed later, a larger cell is bound instead.
TEST(Cells, PlaceAtWorksInAnyOrder) {
    SmallCluster small(1, 2, {{{2, 1}, {1, 1}}});
    EXPECT_TRUE(small.cells->place_at(SmallCluster::request(0, 0, 2), {{0, 0b0011}}));
    EXPECT_TRUE(small.cells->place_at(SmallCluster::request(1, 0, 2), {{0, 0b1100}}));
    EXPECT_TRUE(small.cells->place_at(SmallCluster::request(2, 0, 2), {{1, 0b1100}}));
    EXPECT_TRUE(small.cells->is_sound());
}

TEST(Cells, GangGoesNearItsDataWhenDataBinds) {
    SmallCluster small(2, 2, {{{2, 4}}});
    const std::vector<std::uint32_t> near{1, 2};
    const std::vector<double> costly{1, 0.2};
    ASSERT_TRUE(small.place(0, 0, 3));
    ASSERT_TRUE(small.cells->place_at(SmallCluster::request(1, 0, 2), {{1, 0b0011}}));
    ASSERT_TRUE(small.cells->place_at(SmallCluster::request(2, 0, 2), {{2, 0b0011}}));
    PlaceRequest asked = SmallCluster::request(3, 0, 4);
    asked.near = near;
    asked.rate_far = 0.4;
    auto placed = small.cells->place(asked);
    ASSERT_TRUE(placed);
    EXPECT_THAT(nodes_of(placed->placement), ElementsAre(1, 2));
    small.release(3);
    asked.rate_by_nodes = costly;  // using two nodes costs more than remote data
    placed = small.cells->place(asked);
    ASSERT_TRUE(placed);
    EXPECT_THAT(nodes_of(placed->placement), ElementsAre(3));
    small.release(3);
    asked.rate_by_nodes = {};
    asked.rate_far = 1;  // data does not bind
    placed = small.cells->place(asked);
    ASSERT_TRUE(placed);
    EXPECT_THAT(nodes_of(placed->placement), ElementsAre(3));
}

TEST(Cells, NodeNearTheDataWinsTies) {
    SmallCluster small(2, 2, {{{2, 1}}, {{3, 1}}});
    const std::vector<std::uint32_t> near{3};
    PlaceRequest asked = SmallCluster::request(0, 0, 4);
    asked.near = near;
    const auto placed = small.cells->place(asked);
    ASSERT_TRUE(placed);
    EXPECT_THAT(nodes_of(placed->placement), ElementsAre(3));
    EXPECT_TRUE(small.place(1, 1, 8));
}

TEST(Cells, ClusterMustMatchConfig) {
    SmallCluster small(1, 2, {{{2, 1}}});
    const std::vector<std::string> tenants{"t0"};
    const auto error = [&](const GpuCluster& cluster) {
        const auto made = Cells::create(small.config, cluster, tenants);
        return made ? std::string() : made.error().message;
    };
    GpuCluster cluster = cluster_of(small.config);
    EXPECT_EQ(error(cluster), "");
    cluster.nodes[0].gpus = 8;
    EXPECT_EQ(error(cluster), "cells: node \"n0\" of hierarchy \"h\" has 8 GPUs in the cluster: expected 4");
    cluster = cluster_of(small.config);
    cluster.gpu_types[0] = "b";
    EXPECT_EQ(error(cluster),
              "cells: node \"n0\" of hierarchy \"h\" has GPUs of type \"b\" in the cluster: expected \"a\"");
    cluster = cluster_of(small.config);
    cluster.nodes.push_back({.name = "extra", .gpu_type = 0, .gpus = 4, .usable = true});
    EXPECT_EQ(error(cluster), "cells: node \"extra\" of the cluster is in no hierarchy");
    cluster.nodes.erase(cluster.nodes.begin());
    EXPECT_EQ(error(cluster), "cells: node \"n0\" of hierarchy \"h\" is not in the cluster");
}

}  // namespace
}  // namespace larder::scheduler::tests
