// Jobs that take turns: all jobs in the rotation have quotas, and only running jobs have bandwidth.

#include <gtest/gtest.h>

#include "allocator/assign.h"
#include "allocator/cluster.h"
#include "tests/support/test_units.h"
#include "tests/unit/allocator/by_hand.h"

namespace larder::test {
namespace {

using namespace allocator;

ClusterJob& add_waiting_job(ClusterState& state, const char* name, std::uint32_t dataset, double ideal,
                            double time_share) {
    ClusterJob& job = add_job(state, name, dataset, ideal);
    job.last_placement = std::exchange(job.placement, {});
    job.time_share = time_share;
    return job;
}

// Two jobs have half of the time each. Job `running` runs.
ClusterState two_in_turn(int running, double remote = 1) {
    ClusterState state = cluster(remote, 60);
    add_dataset(state, "a", 40);
    add_dataset(state, "b", 40);
    for (std::uint32_t j = 0; j < 2; ++j) {
        const char* const name = j == 0 ? "one" : "two";
        if (static_cast<int>(j) == running) {
            add_job(state, name, j, j == 0 ? 3 : 2).time_share = 0.5;
        } else {
            add_waiting_job(state, name, j, j == 0 ? 3 : 2, 0.5);
        }
    }
    return state;
}

TEST(Turns, QuotasAreTheSameWhicheverJobRuns) {
    for (const ObjectiveKind kind : {ObjectiveKind::efficiency, ObjectiveKind::max_min, ObjectiveKind::throughput,
                                     ObjectiveKind::utilisation, ObjectiveKind::equal_shares}) {
        const Plan first = planned(two_in_turn(0), kind);
        const Plan second = planned(two_in_turn(1), kind);
        for (std::size_t i = 0; i < 2; ++i) {
            EXPECT_EQ(first.datasets[i].quotas, second.datasets[i].quotas) << "objective " << static_cast<int>(kind);
            EXPECT_GT(first.datasets[i].quota_bytes, 0u) << "objective " << static_cast<int>(kind);
        }
    }
}

TEST(Turns, BandwidthGoesToRunningJobs) {
    const Plan plan = planned(two_in_turn(0), ObjectiveKind::max_min);
    EXPECT_TRUE(plan.jobs[0].running);
    EXPECT_FALSE(plan.jobs[1].running);
    expect_bandwidths(plan, {1, 0});
    expect_quotas(plan, {40, 20});  // the denser dataset first: the remote then suffices
    EXPECT_NEAR(plan.jobs[0].steady_bytes_per_second, 3e9, 1) << "a running job has the whole remote, not half of it";
}

TEST(Turns, RunningJobHasItsEqualShare) {
    // On average, caching the first job's data saves most. With half of its own dataset the second job would reach 1.2
    // GB/s.
    const Plan plan = planned(two_in_turn(1, 0.6), ObjectiveKind::max_min);
    expect_equal_shares(plan, {0, 2});
    EXPECT_NEAR(plan.jobs[1].steady_bytes_per_second / kBytesPerGB, 2, 1e-5);
    EXPECT_NEAR(static_cast<double>(plan.datasets[1].quota_bytes) / kBytesPerGB, 28, 1e-4)
        << "no more than its equal share needs";
}

TEST(Turns, JobWithLargerTimeShareGetsMoreCache) {
    const auto quotas = [](double share_of_a, double share_of_b) {
        ClusterState state = cluster(0.1, 50);
        add_dataset(state, "a", 50);
        add_dataset(state, "b", 50);
        add_job(state, "one", 0, 1).time_share = share_of_a;
        add_waiting_job(state, "two", 1, 1, share_of_b);
        const Plan plan = planned(state, ObjectiveKind::equal_shares);
        return std::pair(plan.datasets[0].quota_bytes, plan.datasets[1].quota_bytes);
    };
    EXPECT_EQ(quotas(0.8, 0.2), std::pair(bytes(40), bytes(10)));
    EXPECT_EQ(quotas(0.5, 0.5), std::pair(bytes(25), bytes(25)));
}

TEST(Turns, DatasetOfWaitingJobGetsNoSpareRoom) {
    ClusterState state = two_in_turn(0);
    add_dataset(state, "idle", 100);
    for (ClusterDataset& dataset : state.datasets) dataset.quotas.push_back({.node = 0});
    const Plan plan = planned(state, Objective{.kind = ObjectiveKind::efficiency, .spare_room = true});
    expect_quotas(plan, {40, 20, 0});
}

TEST(Turns, WaitingJobIsNotPlacedOutOfTurn) {
    const Plan plan = planned(two_in_turn(0), Objective{.place_jobs = true});
    EXPECT_FALSE(plan.jobs[1].running);
    EXPECT_TRUE(plan.jobs[1].found_placement.empty());
}

TEST(Turns, InvalidTimeSharesAreRefused) {
    const auto refused = [](auto change) {
        ClusterState state = two_in_turn(0);
        change(state);
        const auto valid = validate(state);
        return valid ? "" : valid.error().message;
    };
    EXPECT_EQ(refused([](ClusterState&) {}), "");
    EXPECT_NE(refused([](ClusterState& state) { state.jobs[0].time_share = 0; }).find("jobs[0].time_share"),
              std::string::npos);
    EXPECT_NE(refused([](ClusterState& state) { state.jobs[1].time_share = 1.5; }).find("jobs[1].time_share"),
              std::string::npos);
    EXPECT_NE(refused([](ClusterState& state) {
                  state.jobs[0].last_placement = {{.node = 0, .gpus = 1}};
              }).find("jobs[0].last_placement"),
              std::string::npos);
    EXPECT_NE(refused([](ClusterState& state) {
                  state.jobs[1].last_placement = {{.node = 7, .gpus = 1}};
              }).find("jobs[1].last_placement"),
              std::string::npos);
}

// A scheduler's turns count unless a node reports the job.
TEST(Turns, ClusterKeepsCacheOfWaitingJob) {
    Cluster with_turns{{.remote_bytes_per_second = 1e8}};
    const auto report = [&](const char* job, const char* dataset, std::int64_t now_ns) {
        NodeReport sent{.node = "n",
                        .instance = 1,
                        .disk_bytes = 100 * kGB,
                        .datasets = {{.name = "a", .size_bytes = 90 * kGB}, {.name = "b", .size_bytes = 90 * kGB}},
                        .jobs = {{.name = job, .dataset = dataset, .ranks = 1, .demand_bytes_per_second = 1e9}}};
        ASSERT_TRUE(with_turns.report(sent, now_ns));
        ASSERT_TRUE(with_turns.replan(now_ns));
    };
    const auto quota = [&](std::size_t i) { return with_turns.plan().datasets[i].quota_bytes; };
    with_turns.set_turns({{.job = "one", .time_share = 0.5},
                          {.job = "two",
                           .time_share = 0.5,
                           .dataset = "b",
                           .epochs = 3,
                           .ideal_bytes_per_second = 3e8,
                           .ran_on = {{"n", 1}, {"gone", 2}}}});
    report("one", "a", 0);
    EXPECT_EQ(quota(0), 10 * kGB);
    EXPECT_EQ(quota(1), 90 * kGB) << "the waiting job reads three times as fast when it runs";
    const auto part = with_turns.plan_for("n", 0);
    ASSERT_TRUE(part);
    ASSERT_EQ(part->lease.rates.size(), 1u) << "only a running job gets bandwidth";
    EXPECT_EQ(part->lease.rates[0].job, "one");
    with_turns.set_turns({});
    report("one", "a", 1);
    EXPECT_GE(quota(0), 89 * kGB) << "no job waits any more";
}

}  // namespace
}  // namespace larder::test
