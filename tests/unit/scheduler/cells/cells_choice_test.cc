// The choice between cells that would all do: hierarchies of one GPU type, pinned cells, cells beside jobs with a
// claim, and cells of nodes that have come back.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/cells/cells.h"

namespace larder::scheduler::tests {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint32_t kNodeLevel = 1;

// Returns a hierarchy of nodes with 4 GPUs, in racks of `nodes_in_rack`.
HierarchyConfig hierarchy(const std::string& name, std::uint32_t nodes, std::uint32_t nodes_in_rack = 1) {
    HierarchyConfig made{.name = name,
                         .gpu_type = "a",
                         .levels = {{"node", 4}, {"rack", nodes_in_rack}},
                         .node_level = kNodeLevel,
                         .nodes = {}};
    for (std::uint32_t n = 0; n < nodes; ++n) made.nodes.push_back(name + std::to_string(n));
    return made;
}

class CellsChoice : public testing::Test {
protected:
    void use(CellConfig config) {
        const auto good = check_cells(config, "test");
        ASSERT_TRUE(good) << good.error().message;
        cluster_ = cluster_of(config);
        std::vector<std::string> tenants;
        for (const auto& owner : config.virtual_clusters) tenants.push_back(owner.name);
        cells_ = std::move(*Cells::create(config, cluster_, tenants));
    }

    std::optional<Placed> place(JobId job, std::uint32_t tenant, std::uint32_t gpus, bool opportunistic = false) {
        auto placed = cells_->place(
            {.job = job, .tenant = tenant, .gpus = gpus, .gpu_type = 0, .opportunistic = opportunistic, .near = {}});
        EXPECT_TRUE(cells_->is_sound());
        return placed;
    }

    std::optional<Placed> place_shaped(JobId job, std::uint32_t gpus, const GangShape& shape,
                                       bool opportunistic = false) {
        auto placed = cells_->place(request(job, gpus, shape, opportunistic));
        EXPECT_TRUE(cells_->is_sound());
        return placed;
    }

    std::string refusal(std::uint32_t gpus, const GangShape& shape, bool opportunistic = false) const {
        const auto checked = cells_->check(request(0, gpus, shape, opportunistic));
        return checked ? "" : checked.error().message;
    }

    static PlaceRequest request(JobId job, std::uint32_t gpus, const GangShape& shape, bool opportunistic) {
        return {.job = job,
                .tenant = 0,
                .gpus = gpus,
                .gpu_type = 0,
                .opportunistic = opportunistic,
                .near = {},
                .shape = &shape};
    }

    std::vector<std::string> nodes_of(const std::optional<Placed>& placed) const {
        std::vector<std::string> names;
        if (!placed) return names;
        for (const NodeGpus& share : placed->placement) names.push_back(cluster_.nodes[share.node].name);
        return names;
    }

    void set_usable(const std::string& node, bool usable) {
        const auto at = std::ranges::find(cluster_.nodes, node, &GpuNode::name);
        cells_->set_usable(static_cast<std::uint32_t>(at - cluster_.nodes.begin()), usable);
    }

    std::uint32_t doomed(std::uint32_t tenant) const {
        std::uint32_t count = 0;
        for (const VirtualCellState& state : cells_->virtual_cells()) {
            count += state.cluster == tenant && state.cell.doomed ? 1 : 0;
        }
        return count;
    }

    GpuCluster cluster_;
    std::unique_ptr<Cells> cells_;
};

TEST_F(CellsChoice, NodeThatIsBackServesTheFirstOwnerThatAsks) {
    use({.hierarchies = {hierarchy("n", 3)},
         .virtual_clusters = {{.name = "t0", .cells = {{0, kNodeLevel, 2}}, .pinned = {}},
                              {.name = "t1", .cells = {{0, kNodeLevel, 1}}, .pinned = {}}}});
    for (const char* back : {"n0", "n1", "n2"}) {
        for (const char* node : {"n0", "n1", "n2"}) set_usable(node, false);
        ASSERT_EQ(doomed(0), 2U);
        ASSERT_EQ(doomed(1), 1U);
        set_usable(back, true);
        EXPECT_EQ(doomed(0), 1U) << back;
        EXPECT_EQ(doomed(1), 0U) << back;
        EXPECT_THAT(nodes_of(place(0, 0, 4)), ElementsAre(back));
        cells_->release(0);
        EXPECT_THAT(nodes_of(place(1, 1, 4)), ElementsAre(back));
        cells_->release(1);
    }
}

TEST_F(CellsChoice, GangStaysInOneHierarchyThatCanHoldIt) {
    const CellConfig config{.hierarchies = {hierarchy("eth", 1), hierarchy("ib", 2)},
                            .virtual_clusters = {{.name = "t0", .cells = {{0, 1, 1}, {1, 1, 2}}, .pinned = {}}}};
    use(config);
    EXPECT_THAT(nodes_of(place(0, 0, 8)), ElementsAre("ib0", "ib1"));
    cells_->release(0);
    EXPECT_THAT(nodes_of(place(1, 0, 12)), ElementsAre("eth0", "ib0", "ib1")) << "no hierarchy can hold it alone";
    cells_->release(1);
    EXPECT_THAT(nodes_of(place(2, 0, 8, true)), ElementsAre("ib0", "ib1")) << "opportunistic";
    cells_->release(2);
    EXPECT_THAT(nodes_of(place(3, 0, 12, true)), ElementsAre("eth0", "ib0", "ib1"));
}

TEST_F(CellsChoice, OpportunisticGangIsPlacedCloseTogether) {
    use({.hierarchies = {hierarchy("n", 6, 3)},
         .virtual_clusters = {{.name = "t0", .cells = {{0, kNodeLevel, 2}}, .pinned = {}}}});
    ASSERT_THAT(nodes_of(place(0, 0, 4)), ElementsAre("n0"));
    ASSERT_THAT(nodes_of(place(1, 0, 4)), ElementsAre("n1"));
    EXPECT_THAT(nodes_of(place(2, 0, 8, true)), ElementsAre("n3", "n4")) << "in one rack";
}

TEST_F(CellsChoice, OpportunisticJobAvoidsCellsOfJobsWithClaimWhileOthersAreFree) {
    use({.hierarchies = {hierarchy("n", 2)},
         .virtual_clusters = {{.name = "t0", .cells = {{0, kNodeLevel, 1}}, .pinned = {}}}});
    ASSERT_THAT(nodes_of(place(0, 0, 1)), ElementsAre("n0"));
    EXPECT_THAT(nodes_of(place(1, 0, 1, true)), ElementsAre("n1"));
    const auto owner = place(2, 0, 3);
    EXPECT_THAT(nodes_of(owner), ElementsAre("n0"));
    EXPECT_THAT(owner->evicted, IsEmpty());
    cells_->release(2);
    EXPECT_THAT(nodes_of(place(3, 0, 3, true)), ElementsAre("n1"));
    EXPECT_THAT(nodes_of(place(4, 0, 2, true)), ElementsAre("n0")) << "no other GPU is free";
}

TEST_F(CellsChoice, OpportunisticJobAvoidsIdlePinnedCells) {
    use({.hierarchies = {hierarchy("n", 2)},
         .virtual_clusters = {{.name = "t0", .cells = {}, .pinned = {{0, kNodeLevel, 0}}}}});
    EXPECT_THAT(nodes_of(place(0, 0, 4, true)), ElementsAre("n1"));
    EXPECT_THAT(nodes_of(place(1, 0, 4, true)), ElementsAre("n0"));
}

TEST_F(CellsChoice, PinnedCellIsTakenLast) {
    use({.hierarchies = {hierarchy("n", 3)},
         .virtual_clusters = {{.name = "t0", .cells = {{0, kNodeLevel, 1}}, .pinned = {{0, kNodeLevel, 0}}}}});
    EXPECT_THAT(nodes_of(place(0, 0, 1)), ElementsAre("n1"));
    EXPECT_THAT(nodes_of(place(1, 0, 3)), ElementsAre("n1"));
    EXPECT_THAT(nodes_of(place(2, 0, 1)), ElementsAre("n0"));
}

TEST_F(CellsChoice, PodsOfAGangAreNotSplit) {
    use({.hierarchies = {hierarchy("n", 4, 2)},
         .virtual_clusters = {{.name = "t0", .cells = {{0, kNodeLevel, 3}}, .pinned = {}}}});
    const GangShape shape{.pods = {3, 2}};
    ASSERT_TRUE(place(0, 0, 2));
    EXPECT_THAT(nodes_of(place_shaped(1, 5, shape)), ElementsAre("n0", "n1"));
    EXPECT_THAT(nodes_of(place_shaped(2, 5, shape)), IsEmpty()) << "one node is left";
    EXPECT_THAT(nodes_of(place_shaped(3, 5, shape, true)), ElementsAre("n2", "n3")) << "opportunistic";
    EXPECT_EQ(refusal(9, {.pods = {3, 3, 3}}), "");
    EXPECT_THAT(refusal(12, {.pods = {3, 3, 3, 3}}), HasSubstr("none of its tenant's cells can hold the gang"));
    EXPECT_EQ(refusal(12, {.pods = {3, 3, 3, 3}}, true), "");
    EXPECT_THAT(refusal(5, {.pods = {5}}, true), HasSubstr("no cells of the cluster can hold the gang"));
}

TEST_F(CellsChoice, GangRunsInTheHierarchyThatItNames) {
    use({.hierarchies = {hierarchy("eth", 2), hierarchy("ib", 2)},
         .virtual_clusters = {{.name = "t0", .cells = {{0, 1, 2}, {1, 1, 1}}, .pinned = {}}}});
    EXPECT_THAT(nodes_of(place_shaped(0, 4, {.hierarchy = "ib"})), ElementsAre("ib0"));
    EXPECT_THAT(nodes_of(place_shaped(1, 4, {.hierarchy = "ib"})), IsEmpty()) << "its tenant owns no other such node";
    EXPECT_THAT(nodes_of(place_shaped(2, 4, {.hierarchy = "ib"}, true)), ElementsAre("ib1"));
    EXPECT_EQ(refusal(4, {.hierarchy = "ib"}), "");
    EXPECT_THAT(refusal(8, {.hierarchy = "ib"}), HasSubstr("can hold the gang"));
    EXPECT_EQ(refusal(1, {.hierarchy = "x"}), "hierarchy \"x\" is unknown; known: eth, ib");
}

TEST_F(CellsChoice, GangIsKeptTogetherAtTheLevelThatItNames) {
    use({.hierarchies = {hierarchy("n", 6, 3)},
         .virtual_clusters = {{.name = "t0", .cells = {{0, 2, 1}, {0, 1, 3}}, .pinned = {}}}});
    const auto first = place_shaped(0, 8, {.together = "rack"});
    EXPECT_THAT(nodes_of(first), ElementsAre("n0", "n1"));
    EXPECT_THAT(nodes_of(place(1, 0, 8)), ElementsAre("n2", "n3"));
    EXPECT_THAT(nodes_of(place_shaped(2, 8, {.together = "rack"})), IsEmpty());
    EXPECT_THAT(nodes_of(place_shaped(3, 8, {.together = "node"}, true)), IsEmpty());
    EXPECT_THAT(nodes_of(place_shaped(4, 8, {.together = "rack"}, true)), ElementsAre("n4", "n5"));
    EXPECT_EQ(refusal(12, {.together = "rack"}), "");
    EXPECT_THAT(refusal(13, {.together = "rack"}), HasSubstr("can hold the gang"));
    EXPECT_THAT(refusal(5, {.together = "node"}), HasSubstr("can hold the gang"));
    EXPECT_EQ(refusal(1, {.together = "pod"}), "level \"pod\" is unknown; known: node, rack");
}

TEST_F(CellsChoice, GangIsKeptTogetherBelowTheNode) {
    HierarchyConfig switches{
        .name = "h", .gpu_type = "a", .levels = {{"switch", 2}, {"node", 2}}, .node_level = 2, .nodes = {"n0", "n1"}};
    use({.hierarchies = {switches}, .virtual_clusters = {{.name = "t0", .cells = {{0, 2, 2}}, .pinned = {}}}});
    ASSERT_TRUE(cells_->place_at({.job = 0, .tenant = 0, .gpus = 2, .gpu_type = 0, .near = {}}, {{0, 0b0101}}));
    const auto pair = place_shaped(1, 2, {.together = "switch"});
    EXPECT_THAT(nodes_of(pair), ElementsAre("n1")) << "no switch of n0 has two GPUs left";
    EXPECT_THAT(nodes_of(place(2, 0, 2)), ElementsAre("n0"));
}

TEST_F(CellsChoice, JobRunsInThePinnedCellThatItNames) {
    use({.hierarchies = {hierarchy("n", 3)},
         .virtual_clusters = {{.name = "t0",
                               .cells = {{0, kNodeLevel, 1}},
                               .pinned = {{0, kNodeLevel, 2, "fast"}, {0, kNodeLevel, 1, ""}}}}});
    EXPECT_THAT(nodes_of(place_shaped(0, 3, {.cell = "fast"})), ElementsAre("n2"));
    EXPECT_THAT(nodes_of(place_shaped(1, 2, {.cell = "fast"})), IsEmpty());
    EXPECT_THAT(nodes_of(place_shaped(2, 1, {.cell = "fast"})), ElementsAre("n2"));
    EXPECT_EQ(refusal(4, {.cell = "fast"}), "");
    EXPECT_THAT(refusal(5, {.cell = "fast"}), HasSubstr("can hold the gang"));
    EXPECT_EQ(refusal(1, {.cell = "slow"}), "its tenant's pinned cell \"slow\" is unknown; known: fast");
}

}  // namespace
}  // namespace larder::scheduler::tests
