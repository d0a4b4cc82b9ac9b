// Deadlines over cells: a tenant's jobs are promised only what its cells can do.

#include <gmock/gmock.h>

#include "scheduler/cells/cells.h"
#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Three nodes: "one" owns one node, "two" two nodes, "none" nothing. The parameter says whether admission is exact.
class DeadlinesOverCells : public testing::TestWithParam<bool> {
protected:
    DeadlinesOverCells() {
        CellConfig config;
        config.hierarchies.push_back(
            {.name = "h", .gpu_type = "a", .levels = {{"node", 8}}, .node_level = 1, .nodes = {"a0", "a1", "a2"}});
        config.virtual_clusters.push_back({.name = "one", .cells = {{0, 1, 1}}, .pinned = {}});
        config.virtual_clusters.push_back({.name = "two", .cells = {{0, 1, 2}}, .pinned = {}});
        EXPECT_TRUE(check_cells(config, "test"));
        const std::vector<std::string> names{"one", "two", "none"};
        world.pool = std::move(*Cells::create(config, world.cluster, names));
        world.tenants.push_back({.name = "two"});
        world.tenants.push_back({.name = "none"});
    }

    JobSpec& add(std::uint32_t tenant, std::uint32_t gpus, double seconds, double deadline_s) {
        JobSpec& spec = world.add(gpus, tests::work_bytes(gpus, seconds));
        spec.tenant = tenant;
        spec.service = ServiceClass::strict_deadline;
        spec.deadline_s = deadline_s;
        return spec;
    }

    tests::World world{3};
    std::unique_ptr<Policy> policy = std::move(*make_policy("chronus", {.lease_s = 100, .exact = GetParam()}));
};

TEST_P(DeadlinesOverCells, GangLargerThanItsTenantsCellsIsRefused) {
    add(0, 16, 100, 5000);
    add(2, 1, 100, 5000);
    add(1, 16, 100, 5000);
    const auto actions = world.step(*policy);
    ASSERT_TRUE(actions) << actions.error().message;
    EXPECT_THAT(actions->admitted, ElementsAre(2));
    ASSERT_EQ(actions->refused.size(), 2);
    EXPECT_EQ(actions->refused[0].end_s, kNever);
    EXPECT_THAT(world.running(), ElementsAre(2));
}

TEST_P(DeadlinesOverCells, PromisesStayWithinTheTenantsCells) {
    add(0, 8, 300, 350);
    add(0, 8, 300, 360);
    add(0, 8, 300, 700);
    add(1, 8, 300, 370);
    add(1, 8, 300, 380);
    const auto actions = world.step(*policy);
    ASSERT_TRUE(actions) << actions.error().message;
    EXPECT_EQ(actions->admitted.size(), 4);
    ASSERT_EQ(actions->refused.size(), 1) << "the one cell finishes only one of the first two jobs in time";
    EXPECT_EQ(actions->refused[0].job, 1);
    EXPECT_THAT(world.running(), ElementsAre(0, 3, 4));
}

TEST_P(DeadlinesOverCells, PromiseTakesNothingFromOtherTenantsClaims) {
    add(1, 16, 300, 350);
    add(0, 8, 300, 350);
    ASSERT_TRUE(world.step(*policy));
    EXPECT_THAT(world.running(), ElementsAre(0, 1));
    world.pass(50);
    add(1, 8, 200, 320);
    const auto actions = world.step(*policy);
    ASSERT_TRUE(actions) << actions.error().message;
    EXPECT_THAT(actions->admitted, IsEmpty());
    EXPECT_EQ(actions->refused.size(), 1);
    EXPECT_THAT(world.running(), ElementsAre(0, 1));
}

TEST_P(DeadlinesOverCells, JobWithoutClaimIsPromisedWhatOthersLeave) {
    add(1, 8, 300, 350);
    add(2, 16, 100, 5000).opportunistic = true;
    const auto actions = world.step(*policy);
    ASSERT_TRUE(actions) << actions.error().message;
    EXPECT_THAT(actions->admitted, ElementsAre(0, 1));
    EXPECT_THAT(world.running(), ElementsAre(0, 1));
}

INSTANTIATE_TEST_SUITE_P(Admission, DeadlinesOverCells, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "Exact" : "BySlack"; });

}  // namespace
}  // namespace larder::scheduler
