#include <gmock/gmock.h>

#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler {
namespace {

using testing::ElementsAre;

std::unique_ptr<Policy> fifo_policy(std::string_view name) {
    return std::move(*make_policy(name, {}));
}

TEST(Fifo, StartsInTheOrderOfSubmissionAndBlocksBehindTheFirstThatWaits) {
    tests::World world(1);
    world.add(6);
    world.add(4);
    world.add(1);
    const auto fifo = fifo_policy("fifo");
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
    const auto fifo = fifo_policy("fifo-backfill");
    ASSERT_TRUE(world.step(*fifo));
    EXPECT_THAT(world.running(), ElementsAre(0, 2, 3));
}

TEST(Fifo, BackfillNeverDelaysTheFirst) {
    tests::World world(1);
    world.add(6, 6e8 * 100);
    world.add(8);
    world.add(2, 2e8 * 101);
    const auto fifo = fifo_policy("fifo-backfill");
    ASSERT_TRUE(world.step(*fifo));
    EXPECT_THAT(world.running(), ElementsAre(0));
}

TEST(Fifo, AHigherPriorityGoesFirst) {
    tests::World world(1);
    world.add(8);
    world.add(8).priority = 1;
    const auto fifo = fifo_policy("fifo");
    ASSERT_TRUE(world.step(*fifo));
    EXPECT_THAT(world.running(), ElementsAre(1));
}

TEST(Fifo, WhoIsOverTheQuotaHoldsUpNobody) {
    for (const char* name : {"fifo", "fifo-backfill"}) {
        tests::World world(1);
        world.tenants = {{.name = "one", .gpu_quota = 4}, {.name = "two"}};
        world.add(4);
        world.add(4);
        world.add(4).tenant = 1;
        const auto fifo = fifo_policy(name);
        ASSERT_TRUE(world.step(*fifo));
        EXPECT_THAT(world.running(), ElementsAre(0, 2)) << name;
        EXPECT_EQ(world.waits[1], WaitsFor::quota) << name;
    }
}

}  // namespace
}  // namespace larder::scheduler
