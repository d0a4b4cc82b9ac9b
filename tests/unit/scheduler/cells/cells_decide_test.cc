// Cells under decide(): the policy decides which job stops for which other job. The placer decides which jobs a
// tenant's cells cover.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/cells/cells.h"
#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler::tests {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class FixedPolicy final : public Policy {
public:
    std::string_view name() const override { return "fixed"; }
    bool preempts() const override { return true; }
    Result<Decision> decide(const Snapshot&) override { return decision; }
    Decision decision;
};

// Tenants "one" and "two" own whole nodes of 8 GPUs. The arguments of use_cells() are their numbers of nodes.
class CellsDecide : public testing::Test {
protected:
    void use_cells(std::uint32_t one, std::uint32_t two, bool two_is_pinned = false) {
        HierarchyConfig hierarchy{.name = "h", .gpu_type = "a", .levels = {{"node", 8}}, .node_level = 1, .nodes = {}};
        for (const GpuNode& node : world_.cluster.nodes) hierarchy.nodes.push_back(node.name);
        CellConfig config{.hierarchies = {hierarchy}, .virtual_clusters = {}};
        config.virtual_clusters.push_back({.name = "one", .cells = {{0, 1, one}}, .pinned = {}});
        if (two > 0) config.virtual_clusters.push_back({.name = "two", .cells = {{0, 1, two}}, .pinned = {}});
        if (two_is_pinned) config.virtual_clusters[1] = {.name = "two", .cells = {}, .pinned = {{0, 1, 0}}};
        ASSERT_TRUE(check_cells(config, "test"));
        const std::vector<std::string> tenants{"one", "two"};
        auto cells = Cells::create(config, world_.cluster, tenants);
        ASSERT_TRUE(cells);
        cells_ = cells->get();
        world_.pool = std::move(*cells);
        world_.tenants.push_back({.name = "two"});
    }

    Actions step(std::vector<Want> wants) {
        policy_.decision.wants = std::move(wants);
        const auto actions = world_.step(policy_);
        EXPECT_TRUE(actions);
        EXPECT_TRUE(cells_->is_sound());
        return actions ? *actions : Actions{};
    }

    World world_{2};
    Cells* cells_ = nullptr;
    FixedPolicy policy_;
};

TEST_F(CellsDecide, EachTenantGetsItsOwnCells) {
    use_cells(1, 1);
    world_.add(8);
    world_.add(8);
    world_.add(8).tenant = 1;
    step({{.job = 0, .gpus = 8}, {.job = 1, .gpus = 8}});
    EXPECT_THAT(world_.running(), ElementsAre(0));
    EXPECT_EQ(world_.waits[1], WaitsFor::place);
    step({{.job = 0, .gpus = 8}, {.job = 2, .gpus = 8}});
    EXPECT_THAT(world_.running(), ElementsAre(0, 2));
}

TEST_F(CellsDecide, OpportunisticJobStopsForClaim) {
    use_cells(1, 1);
    world_.add(8);
    world_.add(8);
    world_.add(8).tenant = 1;
    step({{.job = 0, .gpus = 8}, {.job = 1, .gpus = 8, .opportunistic = true}});
    EXPECT_THAT(world_.running(), ElementsAre(0, 1));
    const Actions actions = step({{.job = 2, .gpus = 8}, {.job = 0, .gpus = 8}});
    EXPECT_THAT(actions.stops, ElementsAre(1));
    EXPECT_THAT(world_.running(), ElementsAre(0, 2));
}

TEST_F(CellsDecide, JobStoppedForClaimMovesToOtherCells) {
    use_cells(1, 1, true);
    const auto fifo = std::move(*make_policy("fifo-backfill", {}));
    world_.add(8);
    ASSERT_TRUE(world_.step(*fifo));
    world_.add(4).opportunistic = true;
    ASSERT_TRUE(world_.step(*fifo));
    ASSERT_EQ(world_.states[1].placement.front().node, 0U);
    world_.end(0);
    world_.add(8).tenant = 1;  // its tenant's only cell is that node
    const auto actions = world_.step(*fifo);
    ASSERT_TRUE(actions);
    EXPECT_THAT(actions->stops, ElementsAre(0));
    EXPECT_THAT(world_.running(), ElementsAre(1, 2));
    EXPECT_EQ(world_.states[1].placement.front().node, 1U);
    EXPECT_TRUE(world_.states[1].opportunistic);
    EXPECT_TRUE(cells_->is_sound());
}

// Under a real policy, one tenant submits job after job.
TEST_F(CellsDecide, DemotedJobRegainsClaimWhenItsTenantHasRoom) {
    use_cells(1, 1);
    const auto srtf = std::move(*make_policy("srtf", {}));
    world_.add(8, 1e14);
    ASSERT_TRUE(world_.step(*srtf));
    world_.add(8, 1e12);
    ASSERT_TRUE(world_.step(*srtf));
    ASSERT_THAT(world_.running(), ElementsAre(0, 1));
    EXPECT_TRUE(world_.states[0].opportunistic) << "the longer job, on the other tenant's node";
    world_.end(1);
    const auto actions = world_.step(*srtf);
    ASSERT_TRUE(actions);
    EXPECT_THAT(actions->promoted, ElementsAre(0));
    EXPECT_THAT(actions->stops, IsEmpty());
    EXPECT_FALSE(cells_->is_opportunistic(world_.ids[0]));
    world_.add(8, 1e13).tenant = 1;
    ASSERT_TRUE(world_.step(*srtf));
    EXPECT_THAT(world_.running(), ElementsAre(0, 2)) << "no job with a claim in its own cells has to stop";
}

TEST_F(CellsDecide, TenantWithoutCellsHasNoClaim) {
    use_cells(2, 0);
    EXPECT_EQ(cells_->owned_gpus(0, 0), 16U);
    EXPECT_EQ(cells_->owned_gpus(1, 0), 0U);
    world_.add(8).tenant = 1;
    world_.add(8).tenant = 1;
    world_.specs[1].opportunistic = true;
    const auto fifo = std::move(*make_policy("fifo-backfill", {}));
    ASSERT_TRUE(world_.step(*fifo));
    EXPECT_THAT(world_.running(), ElementsAre(1));
}

TEST_F(CellsDecide, UnwantedJobRunsOnWithoutClaimWhereOthersLeaveRoom) {
    use_cells(1, 1);
    world_.add(8);
    world_.add(8);
    world_.add(8).tenant = 1;
    step({{.job = 0, .gpus = 8}});
    const Placement before = world_.states[0].placement;
    Actions actions = step({{.job = 1, .gpus = 8}});
    EXPECT_THAT(actions.stops, IsEmpty());
    EXPECT_THAT(actions.demoted, ElementsAre(0));
    EXPECT_TRUE(world_.states[0].opportunistic);
    EXPECT_EQ(world_.states[0].placement, before);
    EXPECT_THAT(world_.running(), ElementsAre(0, 1));
    // The job is wanted again, but another job has the claim: nothing changes.
    actions = step({{.job = 1, .gpus = 8}, {.job = 0, .gpus = 8}});
    EXPECT_THAT(actions.promoted, IsEmpty());
    EXPECT_THAT(world_.running(), ElementsAre(0, 1));
    // Now the other job is not wanted. It gives the claim back, and both run on.
    actions = step({{.job = 0, .gpus = 8}});
    EXPECT_THAT(actions.promoted, ElementsAre(0));
    EXPECT_THAT(actions.demoted, ElementsAre(1));
    EXPECT_THAT(actions.stops, IsEmpty());
    // The other tenant's job arrives.
    actions = step({{.job = 2, .gpus = 8}, {.job = 0, .gpus = 8}});
    EXPECT_THAT(actions.stops, ElementsAre(1));
    EXPECT_THAT(world_.running(), ElementsAre(0, 2));
}

TEST_F(CellsDecide, UnwantedJobStopsWhereThereIsNoRoom) {
    use_cells(2, 0);
    world_.add(16);
    world_.add(16);
    step({{.job = 0, .gpus = 16}});
    const Actions actions = step({{.job = 1, .gpus = 16}});
    EXPECT_THAT(actions.stops, ElementsAre(0));
    EXPECT_THAT(actions.demoted, IsEmpty());
    EXPECT_THAT(world_.running(), ElementsAre(1));
}

TEST_F(CellsDecide, UnwantedJobKeepsClaimIfStoppingItHelpsNoOther) {
    use_cells(1, 1);
    world_.add(8);
    world_.add(16);
    step({{.job = 0, .gpus = 8}});
    const Actions actions = step({{.job = 1, .gpus = 16}});  // more than its tenant owns
    EXPECT_THAT(actions.stops, IsEmpty());
    EXPECT_THAT(actions.demoted, IsEmpty());
    EXPECT_FALSE(cells_->is_opportunistic(world_.ids[0]));
    EXPECT_THAT(world_.running(), ElementsAre(0));
}

TEST_F(CellsDecide, BackfillKeepsClaimForFirstWaitingJobOfTenant) {
    use_cells(1, 1);
    world_.add(4, tests::work_bytes(4, 100));
    world_.add(8);                             // its tenant has 4 left, the cluster 12
    world_.add(4, tests::work_bytes(4, 200));  // would take those 4
    world_.add(8, tests::work_bytes(8, 200)).tenant = 1;
    world_.add(4, tests::work_bytes(4, 50));  // ends before job 0
    const auto fifo = std::move(*make_policy("fifo-backfill", {}));
    ASSERT_TRUE(world_.step(*fifo));
    EXPECT_THAT(world_.running(), ElementsAre(0, 3, 4));
}

TEST_F(CellsDecide, NoJobSharesGpusInAnotherTenantsCells) {
    use_cells(1, 1);
    world_.add(8);
    world_.add(8).tenant = 1;
    world_.add(8);
    world_.add(8);
    step({{.job = 0, .gpus = 8}, {.job = 1, .gpus = 8, .packed_with = 0}, {.job = 2, .gpus = 8, .packed_with = 0}});
    EXPECT_THAT(world_.running(), ElementsAre(0, 2)) << "only jobs of its own tenant share its GPUs";
}

TEST_F(CellsDecide, OpportunisticJobsShareGpusAcrossTenants) {
    use_cells(1, 1);
    world_.add(8);
    world_.add(8).tenant = 1;
    step(
        {{.job = 0, .gpus = 8, .opportunistic = true}, {.job = 1, .gpus = 8, .opportunistic = true, .packed_with = 0}});
    EXPECT_THAT(world_.running(), ElementsAre(0, 1));
}

}  // namespace
}  // namespace larder::scheduler::tests
