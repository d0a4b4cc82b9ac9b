#include <gmock/gmock.h>

#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler {
namespace {

using testing::ElementsAre;

std::unique_ptr<Policy> fifo_policy(std::string_view name) {
    return std::move(*make_policy(name, {}));
}

TEST(Fifo, StartsInSubmissionOrderAndBlocksBehindFirstWaitingJob) {
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

TEST(Fifo, BackfillsJobsThatEndBeforeFirstCanStart) {
    tests::World world(1);
    world.add(6, tests::work_bytes(6, 100));  // 100 s
    world.add(4);
    world.add(1, tests::work_bytes(1, 50));   // 50 s: ends before the first waiting job can start
    world.add(1, tests::work_bytes(1, 500));  // ends later, but 4 GPUs are spare then
    const auto fifo = fifo_policy("fifo-backfill");
    ASSERT_TRUE(world.step(*fifo));
    EXPECT_THAT(world.running(), ElementsAre(0, 2, 3));
}

TEST(Fifo, BackfillNeverDelaysFirstWaitingJob) {
    tests::World world(1);
    world.add(6, tests::work_bytes(6, 100));
    world.add(8);
    world.add(2, tests::work_bytes(2, 101));
    const auto fifo = fifo_policy("fifo-backfill");
    ASSERT_TRUE(world.step(*fifo));
    EXPECT_THAT(world.running(), ElementsAre(0));
}

TEST(Fifo, BackfillKeepsTypeThatFirstJobRequires) {
    tests::World world(1, {"v100", "p100"});
    world.add(6, tests::work_bytes(6, 100)).gpu_type = 0;
    world.add(8).gpu_type = 0;                             // 2 GPUs of its type are free, and 8 of the other
    world.add(1, tests::work_bytes(1, 50)).gpu_type = 0;   // ends before job 0
    world.add(1, tests::work_bytes(1, 200)).gpu_type = 0;  // ends after job 0
    world.add(1, 4e8 * 200).ideal_bytes_per_second = {4e8, 1e8};
    world.add(6, tests::work_bytes(6, 200)).gpu_type = 1;
    const auto fifo = fifo_policy("fifo-backfill");
    ASSERT_TRUE(world.step(*fifo));
    EXPECT_THAT(world.running(), ElementsAre(0, 2, 4, 5));
    EXPECT_EQ(world.states[4].gpu_type, 1U) << "it is faster on the type that is kept for the first job";
}

TEST(Fifo, StreamOfBackfillDoesNotStarveFirstJob) {
    tests::World world(1, {"v100", "p100"});
    for (int j = 0; j < 2; ++j) world.add(3, tests::work_bytes(3, 100 + 60 * j)).gpu_type = 0;
    world.add(8, tests::work_bytes(8, 10)).gpu_type = 0;
    const auto fifo = fifo_policy("fifo-backfill");
    for (int round = 0; round < 20 && world.states[2].first_started_s == kNever; ++round) {
        world.add(3, tests::work_bytes(3, 100)).gpu_type = 0;
        ASSERT_TRUE(world.step(*fifo));
        world.pass(30);
        world.end_finished();
    }
    EXPECT_NE(world.states[2].first_started_s, kNever);
}

TEST(Fifo, BackfillUsesOnlyGpusFirstJobLeavesIfItsStartIsUnknown) {
    tests::World world(1);
    world.add(4, kNever);
    world.add(6, kNever);
    world.add(1, kNever);
    world.add(2, kNever);
    world.add(1, kNever);
    const auto fifo = fifo_policy("fifo-backfill");
    ASSERT_TRUE(world.step(*fifo));
    EXPECT_THAT(world.running(), ElementsAre(0, 2, 4));
}

TEST(Fifo, JobThatCanNeverStartBlocksNoOther) {
    tests::World world(1);
    world.add(4);
    world.add(16);
    world.add(4, kNever);
    const auto fifo = fifo_policy("fifo-backfill");
    ASSERT_TRUE(world.step(*fifo));
    EXPECT_THAT(world.running(), ElementsAre(0, 2));
}

TEST(Fifo, HigherPriorityGoesFirst) {
    tests::World world(1);
    world.add(8);
    world.add(8).priority = 1;
    const auto fifo = fifo_policy("fifo");
    ASSERT_TRUE(world.step(*fifo));
    EXPECT_THAT(world.running(), ElementsAre(1));
}

TEST(Fifo, JobOverQuotaBlocksNoOther) {
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
