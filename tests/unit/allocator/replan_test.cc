// Tests that plans take account of the past: epochs under way, last epochs, caches that are filling, quotas in force.
// Cases are worked out by hand, in GB and GB per second.

#include <gtest/gtest.h>

#include <vector>

#include "allocator/assign.h"
#include "allocator/model.h"
#include "tests/unit/allocator/by_hand.h"

namespace larder::test {
namespace {

using namespace allocator;

// --- epochs

TEST(Epochs, JobInLastEpochGivesItsCacheAway) {
    ClusterState state = cluster(0.5, 100);
    add_dataset(state, "A", 100).cached = {{.node = 0, .disk_bytes = bytes(100)}};
    add_dataset(state, "B", 100);
    ClusterJob& last = add_job(state, "a", 0, 1);
    last.unread_bytes = bytes(50);
    last.unread_cached_bytes = bytes(40);
    add_job(state, "b", 1, 0.5);
    Plan plan = planned(state, ObjectiveKind::max_min);
    expect_quotas(plan, {100, 0});
    EXPECT_EQ(plan.moved_bytes, 0u);

    state.jobs[0].remaining_epochs = 0.5;
    plan = planned(state, ObjectiveKind::max_min);
    expect_quotas(plan, {0, 100});
    EXPECT_EQ(plan.moved_bytes, bytes(100));
    // For now a still hits four fifths of its unread bytes.
    EXPECT_DOUBLE_EQ(plan.jobs[0].hit_ratio, 0.8);
    EXPECT_DOUBLE_EQ(plan.jobs[0].steady_hit_ratio, 0);
    expect_rates_now(plan, {5.0 / 12, 5.0 / 12});
    expect_bandwidths(plan, {1.0 / 12, 5.0 / 12});
    expect_steady_rates(plan, {0.5, 0.5});
}

TEST(MovedBytes, QuotaSetByHandCountsUpToDatasetSize) {
    ClusterState state = cluster(5, 100);
    add_dataset(state, "A", 20);
    state.datasets[0].held = {{.node = 0, .disk_bytes = bytes(80)}};
    state.datasets[0].quotas = state.datasets[0].held;
    add_job(state, "a", 0, 1);
    EXPECT_EQ(planned(state, ObjectiveKind::max_min).moved_bytes, bytes(20));
}

TEST(Epochs, JobThatReadsOnceGetsNoCache) {
    ClusterState state = cluster(5, 100);
    add_dataset(state, "A", 100);
    add_dataset(state, "B", 100);
    add_job(state, "once", 0, 3).remaining_epochs = 1;
    add_job(state, "often", 1, 0.1);
    expect_quotas(planned(state, ObjectiveKind::efficiency), {0, 100});
}

TEST(Epochs, CacheGoesWhereMoreEpochsAreLeft) {
    ClusterState state = cluster(5, 100);
    add_dataset(state, "A", 100);
    add_dataset(state, "B", 100);
    add_job(state, "a", 0, 1).remaining_epochs = 2;
    add_job(state, "b", 1, 0.6);
    const Plan plan = planned(state, ObjectiveKind::efficiency);
    expect_quotas(plan, {0, 100});

    state.jobs[0].remaining_epochs = 3;
    const Plan later = planned(state, ObjectiveKind::efficiency);
    expect_quotas(later, {100, 0});
    EXPECT_DOUBLE_EQ(later.jobs[0].steady_hit_ratio, 2.0 / 3) << "the first of three epochs misses";
}

TEST(Epochs, CacheThatIsFilledCountsInFullUntilTheJobEnds) {
    ClusterState state = cluster(5, 100);
    add_dataset(state, "A", 100).cached = {{.node = 0, .disk_bytes = bytes(70)}};
    add_dataset(state, "B", 100);
    add_job(state, "a", 0, 1).remaining_epochs = 2;
    add_job(state, "b", 1, 0.6);
    const Plan plan = planned(state, ObjectiveKind::efficiency);
    expect_quotas(plan, {70, 30});
    EXPECT_DOUBLE_EQ(plan.jobs[0].steady_hit_ratio, 0.7);
}

TEST(Epochs, CacheThatIsFilledCountsInFullAsFarAsTheFloorLeavesMisses) {
    ClusterState state = cluster(5, 100);
    add_dataset(state, "A", 100).cached = {{.node = 0, .disk_bytes = bytes(70)}};
    add_dataset(state, "B", 100);
    add_job(state, "a", 0, 1).remaining_epochs = 2;
    add_job(state, "b", 1, 0.6);
    state.jobs[0].bandwidth_floor_bytes_per_second = 0.01 * kBytesPerGB;
    expect_quotas(planned(state, ObjectiveKind::efficiency), {70, 30});
    state.jobs[0].bandwidth_floor_bytes_per_second = 0.5 * kBytesPerGB;
    expect_quotas(planned(state, ObjectiveKind::efficiency), {50, 50});
}

TEST(Epochs, GainsOfCacheFallAsEpochsGoBy) {
    const auto expect = [](double kept, double added, const CacheGains& gains) {
        EXPECT_DOUBLE_EQ(gains.of_kept, kept);
        EXPECT_DOUBLE_EQ(gains.of_added, added);
    };
    expect(1, 1, cache_gains(0.5, 1, 0.5, kUnlimited));
    expect(1, 0.5, cache_gains(0.5, 1, 0.5, 1));
    expect(1, 0, cache_gains(0.5, 0, 0, 1));  // read next in the last epoch
    expect(1, 1.0 / 3, cache_gains(0.5, 0.5, 0.5, 1));
    expect(0.8, 0, cache_gains(1, 0.5, 0.8, 0));  // the last epoch has read a part of what is cached
    expect(0, 0, cache_gains(1, 0, 0, 0));        // nothing is left to read
    for (double epochs_after = 8, before = 1; epochs_after >= 0; epochs_after -= 0.25) {
        const CacheGains gains = cache_gains(0.3, 0.6, 0.3, epochs_after);
        EXPECT_LT(gains.of_added, before);
        EXPECT_GE(gains.of_kept, gains.of_added);
        before = gains.of_added > 0 ? gains.of_added : 1;
    }
}

TEST(Epochs, CacheThatSavesNothingStaysInPlace) {
    ClusterState state = cluster(5, 100);
    add_dataset(state, "A", 100).cached = {{.node = 0, .disk_bytes = bytes(70)}};
    add_dataset(state, "B", 40);
    add_job(state, "b", 1, 1);
    const Plan plan = planned(state, ObjectiveKind::efficiency);
    expect_quotas(plan, {60, 40});
    EXPECT_EQ(plan.moved_bytes, bytes(40));
}

// A is cached whole, but the rest of this epoch cannot hit it.
TEST(Epochs, BandwidthFollowsCurrentHitsNotQuotas) {
    ClusterState state = cluster(1, 100);
    add_dataset(state, "A", 100).cached = {{.node = 0, .disk_bytes = bytes(100)}};
    add_dataset(state, "B", 100);
    ClusterJob& filling = add_job(state, "a", 0, 1);
    filling.unread_bytes = bytes(50);
    add_job(state, "b", 1, 1);
    const struct {
        double unread_cached;
        std::vector<double> rates, bandwidths;
    } steps[] = {{0, {0.5, 0.5}, {0.5, 0.5}}, {25, {1, 0.5}, {0.5, 0.5}}, {50, {1, 1}, {0, 1}}};
    for (const auto& [unread_cached, rates, bandwidths] : steps) {
        state.jobs[0].unread_cached_bytes = bytes(unread_cached);
        const Plan plan = planned(state, ObjectiveKind::max_min);
        expect_quotas(plan, {100, 0});
        expect_rates_now(plan, rates);
        expect_bandwidths(plan, bandwidths);
        expect_steady_rates(plan, {1, 1});
    }
}

// --- hysteresis

// "A" is cached and has its quota. "B" would save a little more.
ClusterState settled(double ideal_of_b) {
    ClusterState state = cluster(10, 100);
    ClusterDataset& cached = add_dataset(state, "A", 100);
    cached.quotas = cached.cached = {{.node = 0, .disk_bytes = bytes(100)}};
    add_dataset(state, "B", 100);
    add_job(state, "a", 0, 1);
    add_job(state, "b", 1, ideal_of_b);
    return state;
}

TEST(Hysteresis, QuotasStayWhenMovingGainsTooLittle) {
    // Moving would take 1 instead of 1.01 GB/s from the remote: 1 %, less than the threshold of 2 %.
    const Plan plan = planned(settled(1.01), {.kind = ObjectiveKind::efficiency});
    EXPECT_TRUE(plan.kept_quotas);
    expect_quotas(plan, {100, 0});
    EXPECT_EQ(plan.moved_bytes, 0u);
    EXPECT_NEAR(plan.steady_remote_bytes_per_second / kBytesPerGB, 1.01, kTolerance);
}

TEST(Hysteresis, QuotasMoveWhenMovingGainsEnough) {
    const Plan plan = planned(settled(1.05), {.kind = ObjectiveKind::efficiency});
    EXPECT_FALSE(plan.kept_quotas);
    expect_quotas(plan, {0, 100});
    EXPECT_EQ(plan.moved_bytes, bytes(100));
    EXPECT_NEAR(plan.steady_remote_bytes_per_second / kBytesPerGB, 1, kTolerance);
}

TEST(Hysteresis, ThresholdComesFromObjective) {
    EXPECT_TRUE(planned(settled(1.05), {.kind = ObjectiveKind::efficiency, .hysteresis = 0.1}).kept_quotas);
    EXPECT_FALSE(planned(settled(1.01), {.kind = ObjectiveKind::efficiency, .hysteresis = 0.005}).kept_quotas);
    EXPECT_FALSE(planned(settled(1.01), {.kind = ObjectiveKind::efficiency, .hysteresis = 0}).kept_quotas);
}

TEST(Hysteresis, QuotasNotFilledYetStillCount) {
    ClusterState state = settled(1.01);
    state.datasets[0].cached[0].disk_bytes = bytes(60);
    const Plan plan = planned(state, {.kind = ObjectiveKind::efficiency});
    EXPECT_TRUE(plan.kept_quotas);
    expect_quotas(plan, {100, 0});
    EXPECT_EQ(plan.moved_bytes, bytes(40));
}

TEST(Hysteresis, JobBoundByItsDiskDoesNotMoveTheQuotasOfOthers) {
    ClusterState state = settled(1.01);
    state.nodes.push_back({.name = "slow disk",
                           .gpus = 1,
                           .disk_bytes = bytes(100),
                           .disk_read_bytes_per_second = 0.1 * kBytesPerGB,
                           .peer_group = 1});
    ClusterDataset& whole = add_dataset(state, "C", 100);
    whole.quotas = whole.cached = {{.node = 1, .disk_bytes = bytes(100)}};
    // The disk binds this job, and it has little to gain from the remote.
    add_job(state, "c", 2, 0.102, 1);
    const Plan plan = planned(state, {.kind = ObjectiveKind::efficiency});
    EXPECT_TRUE(plan.kept_quotas);
    expect_equal_shares(plan, {1, 1.01, 0.1});
    expect_quotas(plan, {100, 0, 100});
}

TEST(Hysteresis, QuotasThatBreakALimitAreNotKept) {
    ClusterState state = settled(1.01);
    state.datasets[0].quota_cap_bytes = bytes(80);
    Plan plan = planned(state, {.kind = ObjectiveKind::efficiency});
    EXPECT_FALSE(plan.kept_quotas);
    expect_quotas(plan, {0, 100});

    state = settled(1.01);
    state.nodes[0].disk_bytes = bytes(90);
    plan = planned(state, {.kind = ObjectiveKind::efficiency});
    EXPECT_FALSE(plan.kept_quotas);
    expect_quotas(plan, {0, 90});

    state = settled(1.01);
    state.datasets[1].quota_floor_bytes = bytes(10);
    plan = planned(state, {.kind = ObjectiveKind::efficiency});
    EXPECT_FALSE(plan.kept_quotas);
}

TEST(Hysteresis, BandwidthIsReplannedThoughQuotasStay) {
    ClusterState state = settled(1.01);
    state.remote_bytes_per_second = 2 * kBytesPerGB;
    state.jobs[0].unread_bytes = bytes(50);
    const Plan plan = planned(state, {.kind = ObjectiveKind::efficiency});
    EXPECT_TRUE(plan.kept_quotas);
    // None of a's unread bytes is cached: the jobs want 1 + 1.01 of a remote of 2.
    EXPECT_NEAR((plan.jobs[0].bandwidth_bytes_per_second + plan.jobs[1].bandwidth_bytes_per_second) / kBytesPerGB, 2,
                kTolerance);
    EXPECT_GE(plan.jobs[0].bandwidth_bytes_per_second / kBytesPerGB, 0.99);
}

}  // namespace
}  // namespace larder::test
