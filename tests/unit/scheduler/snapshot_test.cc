#include "scheduler/snapshot.h"

#include <gtest/gtest.h>

#include "scheduler/near_nodes.h"

namespace larder::scheduler {
namespace {

TEST(TimeShare, IsThePartOfTheTimeThatAJobRan) {
    const JobSpec spec{.ideal_bytes_per_second = {1}};
    JobState job{.spec = &spec, .gpus = 1, .first_started_s = 1000};
    EXPECT_DOUBLE_EQ(time_share(job, 1000), 1) << "it has just started";
    // A third of the time, for days.
    double now_s = 1000;
    for (int turn = 0; turn < 500; ++turn) {
        add_run(job, now_s, now_s + 300);
        now_s += 900;
    }
    EXPECT_NEAR(time_share(job, now_s), 1.0 / 3, 0.02);
    EXPECT_LT(time_share(job, now_s + 6 * 3600), 0.05) << "it has not run for long";
    EXPECT_GT(time_share(job, now_s + 1e7), 0);
}

TEST(TimeShare, IsNotedAnewWhenItIsAnother) {
    const JobSpec spec{.ideal_bytes_per_second = {1}};
    JobState job{.spec = &spec, .gpus = 1, .first_started_s = 0};
    add_run(job, 0, 1000);
    note_time_share(job, 1100);
    EXPECT_EQ(job.time_share, 1) << "a tenth less";
    note_time_share(job, 2000);
    EXPECT_EQ(job.time_share, time_share(job, 2000));
    EXPECT_NEAR(job.time_share, 0.5, 0.03);
}

TEST(NearNodes, WhoHoldsMostComesFirst) {
    NearNodes near;
    near.begin(2);
    near.add(0, 3, 10);
    near.add(0, 1, 20);
    near.add(0, 2, 10);
    near.add(0, 0, 0);
    near.finish();
    const auto nodes = near.of(0);
    EXPECT_EQ(std::vector<std::uint32_t>(nodes.begin(), nodes.end()), (std::vector<std::uint32_t>{1, 2, 3}));
    EXPECT_TRUE(near.of(1).empty());
    EXPECT_TRUE(near.of(kNoDataset).empty());
}

}  // namespace
}  // namespace larder::scheduler
