#include <gmock/gmock.h>

#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

std::unique_ptr<Policy> las(std::vector<double> queue_gpu_s = {800}, double promote_after = 8) {
    return std::move(*make_policy("las", {.queue_gpu_s = std::move(queue_gpu_s), .promote_after = promote_after}));
}

TEST(Las, JobMovedToLowerQueueYields) {
    tests::World world(1);
    world.add(8, kNever);
    const auto policy = las();
    auto actions = world.step(*policy);
    ASSERT_TRUE(actions);
    EXPECT_THAT(actions->next_s, DoubleNear(100, 0.1));
    world.pass(50);
    world.add(8, kNever);
    actions = world.step(*policy);
    ASSERT_TRUE(actions);
    EXPECT_THAT(world.running(), ElementsAre(0));  // both are in the same queue, and job 0 started first
    world.pass(actions->next_s - world.now_s);
    ASSERT_TRUE(world.step(*policy));
    EXPECT_THAT(world.running(), ElementsAre(1));
    world.pass(100);
    ASSERT_TRUE(world.step(*policy));
    EXPECT_THAT(world.running(), ElementsAre(0));  // both are in the lower queue: ordered by first start again
}

TEST(Las, ServiceIsTimeTimesGpus) {
    tests::World world(1);
    world.add(6, kNever);
    world.add(2, kNever);
    const auto policy = las();
    ASSERT_TRUE(world.step(*policy));
    world.pass(200);  // 1,200 and 400 GPU-seconds
    world.add(2, kNever);
    ASSERT_TRUE(world.step(*policy));
    EXPECT_THAT(world.running(), ElementsAre(1, 2));
}

TEST(Las, JobsSinkThroughSeveralQueues) {
    tests::World world(1);
    world.add(8, kNever);
    world.add(8, kNever);
    const auto policy = las({800, 1600, 3200});
    std::vector<std::uint32_t> ran;
    for (int turn = 0; turn < 6; ++turn) {
        const auto actions = world.step(*policy);
        ASSERT_TRUE(actions);
        ran.push_back(world.running().at(0));
        if (actions->next_s == kNever) break;
        world.pass(actions->next_s - world.now_s);
    }
    EXPECT_THAT(ran, ElementsAre(0, 1, 0, 1, 0, 1));
    EXPECT_NEAR(world.states[0].attained_gpu_s, 3200, 1);
    EXPECT_NEAR(world.states[1].attained_gpu_s, 3200, 1);
}

TEST(Las, StarvingJobIsPromotedForWidthOfFirstQueue) {
    tests::World world(1);
    world.add(8, kNever);
    const auto policy = las({800}, 2);
    ASSERT_TRUE(world.step(*policy));
    world.pass(100);
    double stopped_s = 0;
    for (int step = 0; step < 40 && !(world.states[0].running && world.now_s > 100); ++step) {
        world.add(8, kNever);  // a new job at every step
        ASSERT_TRUE(world.step(*policy));
        if (step == 0) stopped_s = world.now_s;
        if (!world.states[0].running) world.pass(50);
    }
    ASSERT_TRUE(world.states[0].running);
    EXPECT_EQ(world.now_s - stopped_s, 200);  // twice the 100 s that it ran
    const auto actions = world.step(*policy);
    ASSERT_TRUE(actions);
    EXPECT_THAT(world.states[0].lease_until_s - world.now_s, DoubleNear(100, 0.1));
    world.pass(99);
    ASSERT_TRUE(world.step(*policy));
    EXPECT_TRUE(world.states[0].running);
    world.pass(1);
    ASSERT_TRUE(world.step(*policy));
    EXPECT_FALSE(world.states[0].running);
}

TEST(Las, NextDecisionIsWhenPromotionIsDue) {
    tests::World world(1);
    world.add(8, kNever);
    const auto policy = las({800}, 0.5);
    ASSERT_TRUE(world.step(*policy));
    world.pass(100);
    world.add(8, kNever);
    const auto actions = world.step(*policy);
    ASSERT_TRUE(actions);
    EXPECT_THAT(world.running(), ElementsAre(1));
    EXPECT_THAT(actions->next_s, DoubleNear(200, 0.1));
}

}  // namespace
}  // namespace larder::scheduler
