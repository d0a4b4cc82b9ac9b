// Which cells a job gets where several would do: hierarchies of one GPU type, pinned cells, cells beside jobs with a
// claim, and cells of nodes that have come back.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/cells/cells.h"

namespace larder::scheduler::tests {
namespace {

using testing::ElementsAre;
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

}  // namespace
}  // namespace larder::scheduler::tests
