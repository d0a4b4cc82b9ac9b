#include <gmock/gmock.h>

#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler {
namespace {

using testing::ElementsAre;

std::unique_ptr<Policy> policy(std::string_view name) {
    return std::move(*make_policy(name, {}));
}

TEST(Fifo, StartsInTheOrderOfSubmissionAndBlocksBehindTheFirstThatWaits) {
    tests::World world(1);
    world.add(6);
    world.add(4);
    world.add(1);
    const auto fifo = policy("fifo");
    ASSERT_TRUE(world.step(*fifo));
    EXPECT_THAT(world.running(), ElementsAre(0));
    EXPECT_EQ(world.waits[1], WaitsFor::gpus);
    EXPECT_EQ(world.waits[2], WaitsFor::turn);
}

TEST(Fifo, BackfillsWhatEndsBeforeTheFirstCanStart) {
    tests::World world(1);
    world.add(6, 6e8 * 100);  // 100 s
    world.add(4);
    world.add(1, 1e8 * 50);   // 50 s: ends before
    world.add(1, 1e8 * 500);  // does not, but 4 GPUs are spare then
    const auto fifo = policy("fifo-backfill");
    ASSERT_TRUE(world.step(*fifo));
    EXPECT_THAT(world.running(), ElementsAre(0, 2, 3));
}

TEST(Fifo, BackfillNeverDelaysTheFirst) {
    tests::World world(1);
    world.add(6, 6e8 * 100);
    world.add(8);
    world.add(2, 2e8 * 101);
    const auto fifo = policy("fifo-backfill");
    ASSERT_TRUE(world.step(*fifo));
    EXPECT_THAT(world.running(), ElementsAre(0));
}

TEST(Fifo, AHigherPriorityGoesFirst) {
    tests::World world(1);
    world.add(8);
    world.add(8).priority = 1;
    const auto fifo = policy("fifo");
    ASSERT_TRUE(world.step(*fifo));
    EXPECT_THAT(world.running(), ElementsAre(1));
}

TEST(MakePolicy, NamesWhatThereIs) {
    const auto made = make_policy("fifi", {});
    ASSERT_FALSE(made);
    EXPECT_THAT(made.error().message, testing::HasSubstr("fifo-backfill"));
}

}  // namespace
}  // namespace larder::scheduler
