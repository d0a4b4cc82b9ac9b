// Elastic jobs under every policy that does not size jobs itself: they grow into idle GPUs and shrink before another
// job has to wait for GPUs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler::tests {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Without Gandiva, which sizes jobs itself (see gandiva_test.cc).
std::vector<std::string_view> policies_that_do_not_size_jobs() {
    std::vector<std::string_view> names;
    for (const std::string_view name : policy_names()) {
        const auto policy = make_policy(name, {});
        if (policy && !(*policy)->sizes_jobs()) names.push_back(name);
    }
    return names;
}

class Elastic : public testing::TestWithParam<std::string_view> {
protected:
    void SetUp() override { policy_ = std::move(*make_policy(GetParam(), {})); }
    Actions step() {
        const auto actions = world_.step(*policy_);
        EXPECT_TRUE(actions) << actions.error().message;
        return actions ? *actions : Actions{};
    }
    // Adds a job of 2 to 8 GPUs.
    JobSpec& add_elastic(double seconds = 1e6) {
        JobSpec& spec = world_.add(2, tests::work_bytes(2, seconds));
        spec.gpus_max = 8;
        return spec;
    }

    World world_{1};
    std::unique_ptr<Policy> policy_;
};

TEST_P(Elastic, GrowsIntoIdleGpusAndShrinksForGang) {
    add_elastic();
    step();
    EXPECT_EQ(world_.states[0].gpus, 8U) << "it has them from its start";
    world_.pass(1000);
    world_.add(4, tests::work_bytes(4, 100));
    const Actions shrinks = step();
    EXPECT_THAT(shrinks.stops, ElementsAre(0));
    EXPECT_THAT(world_.running(), ElementsAre(0, 1));
    EXPECT_EQ(world_.states[0].gpus, 4U) << "no smaller than the gang needs";
    world_.pass(100);
    world_.end_finished();
    world_.pass(1000);
    step();
    EXPECT_EQ(world_.states[0].gpus, 8U) << "it grows again while it runs";
    world_.pass(400);
    EXPECT_THAT(step().stops, IsEmpty()) << "it keeps its size";
}

TEST_P(Elastic, ShrinksNoFurtherThanItsMinimum) {
    add_elastic();
    step();
    world_.pass(1000);
    world_.add(6, tests::work_bytes(6, 100));
    step();
    EXPECT_THAT(world_.running(), ElementsAre(0, 1));
    EXPECT_EQ(world_.states[0].gpus, 2U);
}

TEST_P(Elastic, DoesNotRestartWhenGrowingGainsLess) {
    JobSpec& spec = add_elastic(100);
    spec.restart_s = 500;
    world_.add(6, tests::work_bytes(6, 10));
    step();
    ASSERT_EQ(world_.states[0].gpus, 2U);
    world_.pass(10);
    world_.end_finished();
    EXPECT_THAT(step().stops, IsEmpty());
    EXPECT_EQ(world_.states[0].gpus, 2U);
}

TEST_P(Elastic, GrowsNoFurtherThanItsQuota) {
    world_.tenants[0].gpu_quota = 5;
    add_elastic();
    step();
    EXPECT_EQ(world_.states[0].gpus, 5U);
}

TEST_P(Elastic, NonPreemptibleJobDoesNotGrow) {
    add_elastic().preemptible = false;
    step();
    EXPECT_EQ(world_.states[0].gpus, 2U);
}

TEST_P(Elastic, OpportunisticJobsStartBeforeOthersGrow) {
    add_elastic();
    step();
    world_.pass(1000);
    world_.add(4, tests::work_bytes(4, 1000)).opportunistic = true;
    step();
    EXPECT_THAT(world_.running(), ElementsAre(0, 1));
    EXPECT_EQ(world_.states[0].gpus, 4U);
}

TEST_P(Elastic, HasWholePodsOnly) {
    const auto add_pods = [&](std::uint32_t gpus, std::uint32_t least, std::uint32_t most, std::uint32_t pod) {
        JobSpec& spec = world_.add(gpus, tests::work_bytes(gpus, 1e6));
        spec.gpus_min = least;
        spec.gpus_max = most;
        spec.shape.pods.assign(most / pod, pod);
    };
    add_pods(3, 3, 9, 3);
    step();
    EXPECT_EQ(world_.states[0].gpus, 6U) << "a third pod has no place";
    world_.pass(1000);
    world_.add(3, tests::work_bytes(3, 100));
    step();
    EXPECT_EQ(world_.states[0].gpus, 3U) << "a pod goes whole";
    world_ = World(1);
    add_pods(9, 3, 9, 3);
    step();
    EXPECT_EQ(world_.states[0].gpus, 6U) << "the type has 8";
    world_ = World(1);
    world_.tenants[0].gpu_quota = 7;
    add_pods(8, 4, 8, 4);
    step();
    EXPECT_EQ(world_.states[0].gpus, 4U) << "the quota has room for 7";
}

TEST_P(Elastic, PodThatDoesNotFitLeavesItsRoomToOthers) {
    JobSpec& pods = world_.add(3, tests::work_bytes(3, 1e6));
    pods.gpus_max = 6;
    pods.shape.pods = {3, 3};
    world_.add(4, tests::work_bytes(4, 1e6)).gpus_max = 5;
    step();
    EXPECT_EQ(world_.states[0].gpus, 3U);
    EXPECT_EQ(world_.states[1].gpus, 5U);
}

// Jobs that the engine resizes, on two nodes.
class Resizable : public Elastic {
protected:
    void SetUp() override {
        Elastic::SetUp();
        world_ = World(2);
    }
    // Adds a job of 2 to 16 GPUs that runs on two GPUs of the first node.
    JobSpec& add_resizable(double seconds = 1e6) {
        JobSpec& spec = world_.add(2, tests::work_bytes(2, seconds));
        spec.gpus_max = 2;
        step();
        EXPECT_THAT(world_.states[0].placement, ElementsAre(NodeGpus{.node = 0, .gpus = 3}));
        spec.gpus_max = 16;
        spec.resizable = true;
        return spec;
    }
    std::vector<std::pair<std::uint32_t, std::uint32_t>> gpus_by_node() const {
        std::vector<std::pair<std::uint32_t, std::uint32_t>> gpus;
        for (const NodeGpus& share : world_.states[0].placement) gpus.emplace_back(share.node, share.count());
        return gpus;
    }
};

TEST_P(Resizable, GrowsByTasksOnOtherNodesAndKeepsItsGpus) {
    add_resizable();
    step();
    EXPECT_THAT(gpus_by_node(), ElementsAre(std::pair(0U, 2U), std::pair(1U, 2U))) << "not by GPUs of its own node";
    EXPECT_EQ(world_.states[0].placement[0].gpus, 3U);
}

TEST_P(Resizable, GrowsHoweverLittleItGains) {
    add_resizable(1);
    step();
    EXPECT_EQ(world_.states[0].gpus, 4U);
}

TEST_P(Resizable, DoesNotGrowWhileItIsResized) {
    add_resizable();
    world_.states[0].resizing = true;
    EXPECT_THAT(step().stops, IsEmpty());
}

TEST_P(Resizable, GivesUpWholeTasksForAGang) {
    add_resizable();
    step();
    world_.pass(1000);
    world_.add(13, tests::work_bytes(13, 100));
    step();
    EXPECT_THAT(world_.running(), ElementsAre(0, 1));
    EXPECT_THAT(gpus_by_node(), ElementsAre(std::pair(0U, 2U))) << "though it might keep a third GPU";
}

TEST_P(Resizable, GrowsNoMoreIfThatGainsLessThanPartOfADeclaredRestart) {
    add_resizable(100).restart_s = 500;
    EXPECT_THAT(step().stops, IsEmpty());
}

TEST_P(Resizable, TaskThatCannotStayWholeLeavesItsRoomToOthers) {
    world_.tenants[0].gpu_quota = 15;
    add_resizable();
    step();
    world_.pass(1000);
    JobSpec& second = world_.add(12, tests::work_bytes(12, 1e6));
    second.gpus_max = 13;
    step();
    EXPECT_EQ(world_.states[0].gpus, 2U) << "though the quota has room for 4";
    EXPECT_EQ(world_.states[1].gpus, 13U);
}

TEST_P(Resizable, GrowsByWholePods) {
    const auto has_pods = [&](std::uint32_t pod) {
        world_ = World(3);
        JobSpec& spec = add_resizable();
        spec.shape.pods.assign(spec.gpus_max / pod, pod);
        for (const std::uint32_t gpus : {6U, 7U, 7U}) world_.add(gpus, tests::work_bytes(gpus, 1e6));
    };
    has_pods(2);
    step();
    EXPECT_THAT(gpus_by_node(), ElementsAre(std::pair(0U, 2U))) << "the other nodes have one GPU left each";
    has_pods(1);
    step();
    EXPECT_THAT(gpus_by_node(), ElementsAre(std::pair(0U, 2U), std::pair(1U, 1U), std::pair(2U, 1U)));
}

INSTANTIATE_TEST_SUITE_P(Policies, Resizable, testing::ValuesIn(policies_that_do_not_size_jobs()),
                         [](const auto& tested) {
                             std::string name(tested.param);
                             std::erase(name, '-');
                             return name;
                         });

class ResizableUnderGandiva : public testing::Test {
protected:
    // Adds a job of 4 to 8 GPUs that has run for a while on 4 GPUs of the first node.
    void add_resizable() {
        JobSpec& spec = world_.add(4, tests::work_bytes(4, 1e6));
        step();
        EXPECT_EQ(world_.states[0].gpus, 4U);
        spec.gpus_max = 8;
        spec.resizable = true;
        world_.pass(1000);
    }
    void ends_in(double seconds) { world_.states[0].remaining_bytes = tests::work_bytes(4, seconds); }
    Actions step() {
        const auto actions = world_.step(*policy_);
        EXPECT_TRUE(actions) << actions.error().message;
        return actions ? *actions : Actions{};
    }
    World world_{1};
    std::unique_ptr<Policy> policy_ = std::move(*make_policy("gandiva", {}));
};

TEST_F(ResizableUnderGandiva, RestartsToGrowOnItsOwnNodeOnlyIfThatGainsMore) {
    add_resizable();
    ends_in(10);
    EXPECT_THAT(step().stops, IsEmpty());
    world_.pass(1);
    EXPECT_THAT(step().stops, IsEmpty()) << "its GPUs are still its own";
    ends_in(1e6);
    world_.pass(1000);
    EXPECT_THAT(step().stops, ElementsAre(0));
    EXPECT_EQ(world_.states[0].gpus, 8U);
}

TEST_F(ResizableUnderGandiva, GrowsByTasksOnOtherNodesThoughItEndsSoon) {
    world_ = World(2);
    add_resizable();
    ends_in(10);
    step();
    EXPECT_EQ(world_.states[0].gpus, 8U);
    EXPECT_EQ(world_.states[0].placement.size(), 2U);
}

TEST_F(ResizableUnderGandiva, DoesNotGrowWhileItIsResized) {
    world_ = World(2);
    add_resizable();
    world_.states[0].resizing = true;
    EXPECT_THAT(step().stops, IsEmpty());
}

// A small trace, run to its end: it ends sooner with elastic jobs than with the same jobs rigid, and every job ends.
TEST_P(Elastic, TraceEndsSoonerThanWithRigidJobs) {
    const auto run = [](std::string_view name, bool elastic) {
        World world(2);
        TestRandom random(3);
        for (int j = 0; j < 12; ++j) {
            const std::uint32_t gpus = 1U << random.below(3);
            JobSpec& spec = world.add(gpus, tests::work_bytes(gpus, 500 + random.below(20000)));
            if (elastic && j % 2 == 0) spec.gpus_max = 4 * gpus;
            spec.restart_s = 10;
        }
        const auto policy = std::move(*make_policy(name, {}));
        for (int steps = 0; !world.jobs.empty() && steps < 5000; ++steps) {
            const auto actions = world.step(*policy);
            EXPECT_TRUE(actions) << actions.error().message;
            if (!actions) break;
            world.pass(std::min(world.next_end_s(), actions->next_s) - world.now_s);
            world.end_finished();
        }
        EXPECT_TRUE(world.jobs.empty()) << name;
        return world.now_s;
    };
    EXPECT_LT(run(GetParam(), true), run(GetParam(), false));
}

INSTANTIATE_TEST_SUITE_P(Policies, Elastic, testing::ValuesIn(policies_that_do_not_size_jobs()),
                         [](const auto& tested) {
                             std::string name(tested.param);
                             std::erase(name, '-');
                             return name;
                         });

}  // namespace
}  // namespace larder::scheduler::tests
