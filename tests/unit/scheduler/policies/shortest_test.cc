#include <gmock/gmock.h>

#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler {
namespace {

using testing::ElementsAre;

TEST(Sjf, ShortestWaitingJobIsNextAndNoneIsStopped) {
    tests::World world(1);
    world.add(8, tests::work_bytes(8, 1000));
    const auto sjf = std::move(*make_policy("sjf", {}));
    ASSERT_TRUE(world.step(*sjf));
    world.add(8, tests::work_bytes(8, 500));
    world.add(8, tests::work_bytes(8, 10));
    ASSERT_TRUE(world.step(*sjf));
    EXPECT_THAT(world.running(), ElementsAre(0));
    world.end(0);
    ASSERT_TRUE(world.step(*sjf));
    EXPECT_THAT(world.running(), ElementsAre(2));
}

TEST(Srtf, JobWithMoreWorkLeftIsStopped) {
    tests::World world(1);
    world.add(8, tests::work_bytes(8, 1000));
    const auto srtf = std::move(*make_policy("srtf", {}));
    ASSERT_TRUE(world.step(*srtf));
    world.pass(900);  // 100 s left
    world.add(8, tests::work_bytes(8, 200));
    ASSERT_TRUE(world.step(*srtf));
    EXPECT_THAT(world.running(), ElementsAre(0));
    world.add(8, tests::work_bytes(8, 50));
    ASSERT_TRUE(world.step(*srtf));
    EXPECT_THAT(world.running(), ElementsAre(2));
}

TEST(Srtf, CostOfRestartCounts) {
    tests::World world(1);
    world.add(8, tests::work_bytes(8, 1000)).restart_s = 300;
    const auto srtf = std::move(*make_policy("srtf", {}));
    ASSERT_TRUE(world.step(*srtf));
    world.pass(900);
    world.add(8, tests::work_bytes(8, 50));
    ASSERT_TRUE(world.step(*srtf));  // job 0 is stopped with 100 s of work left, which take 400 s with the restart
    world.end(1);
    world.add(8, tests::work_bytes(8, 200));
    ASSERT_TRUE(world.step(*srtf));
    EXPECT_THAT(world.running(), ElementsAre(2));
}

TEST(Srtf, UnknownWorkComesLast) {
    tests::World world(1);
    world.add(8, kNever);
    world.add(8, 1e15);
    const auto srtf = std::move(*make_policy("srtf", {}));
    ASSERT_TRUE(world.step(*srtf));
    EXPECT_THAT(world.running(), ElementsAre(1));
}

// Storage slows down only the job whose dataset is not cached.
TEST(Srtf, SlowStorageMakesJobLonger) {
    for (const bool aware : {true, false}) {
        tests::World world(1);
        world.storage = {.cache_bytes = 0, .remote_bytes_per_second = 2e8};
        world.datasets = {{.name = "remote", .size_bytes = 1e12, .cached_bytes = 0},
                          {.name = "cached", .size_bytes = 1e12, .cached_bytes = 1e12}};
        world.add(8, tests::work_bytes(8, 1000)).dataset = 0;  // takes 4,000 s at the bandwidth of the remote
        world.add(8, tests::work_bytes(8, 2000)).dataset = 1;  // takes 2,000 s, from the cache
        world.storage_aware = aware;
        const auto srtf = std::move(*make_policy("srtf", {}));
        ASSERT_TRUE(world.step(*srtf));
        EXPECT_THAT(world.running(), ElementsAre(aware ? 1 : 0));
    }
}

// The plan may give a running job less than the share that waiting jobs are assumed to get. If that made it look longer
// only while it runs, two jobs would stop each other for ever.
TEST(Srtf, JobThatThePlanSlowsDownIsNotStoppedByLongerOne) {
    tests::World world(1);
    world.storage = {.cache_bytes = 0, .remote_bytes_per_second = 2e8};
    world.datasets = {{.name = "remote", .size_bytes = 1e13, .cached_bytes = 0}};
    world.add(8, tests::work_bytes(8, 1000)).dataset = 0;  // takes 4,000 s at the bandwidth of the remote
    const auto srtf = std::move(*make_policy("srtf", {}));
    ASSERT_TRUE(world.step(*srtf));
    world.states[0].rate_bytes_per_second = 1e8;           // and 8,000 s at what the plan gives
    world.add(8, tests::work_bytes(8, 1500)).dataset = 0;  // 6,000 s
    for (int step = 0; step < 5; ++step) {
        ASSERT_TRUE(world.step(*srtf));
        EXPECT_THAT(world.running(), ElementsAre(0));
    }
    world.add(8, tests::work_bytes(8, 500)).dataset = 0;  // 2,000 s
    ASSERT_TRUE(world.step(*srtf));
    EXPECT_THAT(world.running(), ElementsAre(2));
}

// If one job runs at a time and all jobs are present from the start, no order has a lower sum of completion times than
// shortest first.
TEST(Srtf, ShortestFirstIsOptimalIfOneJobRunsAtATime) {
    for (std::uint32_t seed = 0; seed < 50; ++seed) {
        tests::TestRandom random(seed);
        std::vector<double> lengths;
        tests::World world(1);
        for (int j = 0; j < 5; ++j) {
            lengths.push_back(1 + random.below(100));
            world.add(8, tests::work_bytes(8, lengths.back()));
        }
        const auto srtf = std::move(*make_policy("srtf", {}));
        double sum = 0;
        while (!world.jobs.empty()) {
            ASSERT_TRUE(world.step(*srtf));
            world.pass(world.next_end_s() - world.now_s);
            const std::size_t before = world.jobs.size();
            world.end_finished();
            sum += world.now_s * static_cast<double>(before - world.jobs.size());
        }
        std::vector<std::size_t> order{0, 1, 2, 3, 4};
        double best = kNever;
        do {
            double end_s = 0;
            double order_sum_s = 0;
            for (const std::size_t j : order) order_sum_s += end_s += lengths[j];
            best = std::min(best, order_sum_s);
        } while (std::ranges::next_permutation(order).found);
        EXPECT_NEAR(sum, best, 1e-3) << "seed " << seed;
    }
}

}  // namespace
}  // namespace larder::scheduler
