#include "scheduler/snapshot.h"

#include <gtest/gtest.h>

#include "scheduler/near_nodes.h"

namespace larder::scheduler {
namespace {

TEST(TimeShare, IsFractionOfTimeThatJobRan) {
    const JobSpec spec{.ideal_bytes_per_second = {1}};
    JobState job{.spec = &spec, .gpus = 1, .first_started_s = 1000};
    EXPECT_DOUBLE_EQ(time_share(job, 1000), 1) << "it has just started";
    // The job runs a third of the time, for days.
    double now_s = 1000;
    for (int turn = 0; turn < 500; ++turn) {
        add_run(job, now_s, now_s + 300);
        now_s += 900;
    }
    EXPECT_NEAR(time_share(job, now_s), 1.0 / 3, 0.02);
    EXPECT_LT(time_share(job, now_s + 6 * 3600), 0.05) << "it has not run for a long time";
    EXPECT_GT(time_share(job, now_s + 1e7), 0);
}

TEST(TimeShare, IsUpdatedOnlyAfterLargerChange) {
    const JobSpec spec{.ideal_bytes_per_second = {1}};
    JobState job{.spec = &spec, .gpus = 1, .first_started_s = 0};
    add_run(job, 0, 1000);
    note_time_share(job, 1100);
    EXPECT_EQ(job.time_share, 1) << "a change of a tenth is too small";
    note_time_share(job, 2000);
    EXPECT_EQ(job.time_share, time_share(job, 2000));
    EXPECT_NEAR(job.time_share, 0.5, 0.03);
}

TEST(RunTime, CountsForEachJobAsIfItRanAlone) {
    const JobSpec spec{.ideal_bytes_per_second = {1, 1}};
    std::vector<JobState> jobs(6, JobState{.spec = &spec, .gpus = 2});
    std::vector<JobState> alone = jobs;
    const TimeWindow window{.interval_s = 100, .intervals = 3};
    double now_s = 1000;
    for (int turn = 0; turn < 200; ++turn) {
        const double from_s = now_s;
        now_s += 7 * (turn % 11);
        RunTime time(from_s, now_s, window);
        for (std::size_t j = 0; j < jobs.size(); ++j) {
            if ((turn + j) % 3 == 0) continue;  // so jobs last ran at different times
            jobs[j].gpu_type = alone[j].gpu_type = static_cast<std::uint32_t>(j % 2);
            add_run(jobs[j], time);
            add_run(alone[j], from_s, now_s, window);
            ASSERT_EQ(jobs[j].gpu_time, alone[j].gpu_time);
            ASSERT_EQ(jobs[j].recent_run_s_by_type, alone[j].recent_run_s_by_type);
            ASSERT_EQ(recent_run_s(jobs[j], jobs[j].gpu_type, now_s), jobs[j].recent_run_s_by_type[jobs[j].gpu_type]);
        }
    }
    EXPECT_GT(recent_run_s(jobs[0], 0, now_s), 0);
}

TEST(ExpectedRate, IsBoundByNodeNetworkFarFromData) {
    JobSpec spec{.gpus = 4, .gpus_min = 4, .gpus_max = 4, .ideal_bytes_per_second = {4e8}, .dataset = 0};
    const JobState job{.spec = &spec, .remaining_bytes = 1e12};
    const std::vector<GpuTypeState> types{{.name = "a", .gpus = 16}};
    const std::vector<DatasetState> datasets{{.name = "images", .size_bytes = 1e9, .cached_bytes = 1e9}};
    Snapshot snapshot{.gpu_types = types,
                      .jobs = {},
                      .tenants = {},
                      .datasets = datasets,
                      .storage = {.cache_bytes = 1e9, .remote_bytes_per_second = 1e9}};
    EXPECT_EQ(expected_rate_far(snapshot, job, 0, 4), 4e8) << "all data is cached, and networks have no limit";
    snapshot.storage.nic_bytes_per_second = 8e8;
    EXPECT_EQ(expected_rate_far(snapshot, job, 0, 4), 2e8);
    EXPECT_EQ(expected_rate(snapshot, job, 0, 4), 4e8);
    snapshot.storage.nic_bytes_per_second = kNever;
    snapshot.storage.own_caches = true;
    EXPECT_EQ(expected_rate_far(snapshot, job, 0, 4), 2.5e8) << "blocks cached on other nodes are no hits";
    EXPECT_EQ(expected_rate(snapshot, job, 0, 4), 4e8);
    spec.dataset = kNoDataset;
    EXPECT_EQ(expected_rate_far(snapshot, job, 0, 4), 4e8);
}

TEST(NearNodes, NodeThatHoldsMostComesFirst) {
    NearNodes near;
    near.begin(2);
    near.add(0, 3, 10);
    near.add(0, 1, 20);
    near.add(0, 2, 10);
    near.add(0, 0, 0);
    near.finish();
    const auto nodes = near.holders_of(0);
    EXPECT_EQ(std::vector<std::uint32_t>(nodes.begin(), nodes.end()), (std::vector<std::uint32_t>{1, 2, 3}));
    EXPECT_TRUE(near.holders_of(1).empty());
    EXPECT_TRUE(near.holders_of(kNoDataset).empty());
}

TEST(NearNodes, ListIsLimitedToNodesThatHoldMost) {
    NearNodes near;
    near.begin(1);
    constexpr std::uint32_t kNodes = 4 * NearNodes::kNodesMax;
    for (std::uint32_t n = 0; n < kNodes; ++n) near.add(0, n, 1 + n);
    near.finish();
    ASSERT_EQ(near.holders_of(0).size(), NearNodes::kNodesMax);
    EXPECT_EQ(near.holders_of(0).front(), kNodes - 1);
    EXPECT_EQ(near.holders_of(0).back(), kNodes - NearNodes::kNodesMax);
}

}  // namespace
}  // namespace larder::scheduler
