// Small clusters whose plans were worked out by hand, for each objective. Bytes are in GB, rates in GB per second.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "allocator/assign.h"
#include "allocator/model.h"
#include "tests/unit/allocator/by_hand.h"

namespace larder::test {
namespace {

using namespace allocator;

// --- the formulas

TEST(Model, RateIsMinOfIdealAndBandwidthOverMissRatio) {
    EXPECT_DOUBLE_EQ(predicted_rate(10, 2, 0), 2);
    EXPECT_DOUBLE_EQ(predicted_rate(10, 2, 0.5), 4);
    EXPECT_DOUBLE_EQ(predicted_rate(3, 2, 0.5), 3);
    EXPECT_DOUBLE_EQ(predicted_rate(10, 0, 1), 10);
    EXPECT_DOUBLE_EQ(predicted_rate(10, 0, 0.9), 0);
}

TEST(Model, LruHitRatioIsFarBelowCachedShare) {
    EXPECT_NEAR(lru_hit_ratio(0.5), 0.153426, 1e-6);
    EXPECT_NEAR(lru_hit_ratio(0.9), 0.669741, 1e-6);
    EXPECT_EQ(lru_hit_ratio(0), 0);
    EXPECT_EQ(lru_hit_ratio(1), 1);
}

TEST(Model, RestOfEpochHitsCachedPartOfUnreadBytes) {
    ClusterJob job;
    EXPECT_DOUBLE_EQ(effective_hit_ratio(job, 0.3, 0), 0.3);
    job.unread_bytes = 50;
    job.unread_cached_bytes = 10;
    EXPECT_DOUBLE_EQ(effective_hit_ratio(job, 0.3, 0), 0.2);
    EXPECT_DOUBLE_EQ(effective_hit_ratio(job, 0.1, 50), 0.2);
    EXPECT_DOUBLE_EQ(effective_hit_ratio(job, 0.1, 100), 0.15) << "half of the next 100 bytes belong to the next epoch";
    EXPECT_DOUBLE_EQ(effective_hit_ratio(job, 0.3, 100), 0.2)
        << "but the job must first finish this epoch, which hits 0.2";
    job.unread_bytes = 0;
    job.unread_cached_bytes = 0;
    EXPECT_DOUBLE_EQ(effective_hit_ratio(job, 0.3, 100), 0.3);
}

// Blocks cached during an epoch help only in the next epoch. Near the end of an epoch the rest may hit nothing, and the
// next epoch hits everything.
TEST(Model, EpochEndsInTimeEvenIfNextEpochHitsEverything) {
    constexpr double ideal = 30e6;
    constexpr double horizon_s = 10;
    ClusterJob job{.ideal_bytes_per_second = ideal, .unread_bytes = 300'000'000};
    for (int seconds = 0; seconds < 10; ++seconds) {
        const double bandwidth = ideal * (1 - effective_hit_ratio(job, 1, horizon_s * ideal));
        job.unread_bytes -= static_cast<std::uint64_t>(bandwidth);
    }
    EXPECT_EQ(job.unread_bytes, 0u);
}

// --- efficiency

TEST(Efficiency, DensestDatasetIsCachedFirst) {
    ClusterState state = cluster(0.6, 100);
    add_dataset(state, "A", 100);
    add_dataset(state, "B", 100);
    add_job(state, "a", 0, 1.0);
    add_job(state, "b", 1, 0.5);
    const Plan plan = planned(state, ObjectiveKind::efficiency);
    expect_quotas(plan, {100, 0});
    // Each job's equal share is 50 GB and 0.3 GB/s: 0.3 / (1 - 0.5).
    expect_equal_shares(plan, {0.6, 0.5});
    expect_steady_rates(plan, {1.0, 0.5});
    EXPECT_NEAR(plan.steady_remote_bytes_per_second / kBytesPerGB, 0.5, kTolerance);
    // Nothing is cached yet.
    expect_rates_now(plan, {0.3, 0.3});
    expect_bandwidths(plan, {0.3, 0.3});
    EXPECT_EQ(plan.moved_bytes, bytes(100));
}

TEST(Efficiency, LastDatasetThatFitsIsCachedInPart) {
    ClusterState state = cluster(2, 120);
    add_dataset(state, "A", 100);
    add_dataset(state, "B", 50);
    add_job(state, "a", 0, 1.0);
    add_job(state, "b", 1, 1.0);
    const Plan plan = planned(state, ObjectiveKind::efficiency);
    expect_quotas(plan, {70, 50});
    expect_steady_rates(plan, {1, 1});
    EXPECT_NEAR(plan.steady_remote_bytes_per_second / kBytesPerGB, 0.3, kTolerance);
}

TEST(Efficiency, SharedDatasetCountsDensityOfAllItsJobs) {
    ClusterState state = cluster(1, 100);
    add_dataset(state, "A", 100);
    add_dataset(state, "B", 100);
    add_job(state, "a1", 0, 0.4);
    add_job(state, "b", 1, 0.6);
    expect_quotas(planned(state, ObjectiveKind::efficiency), {0, 100});
    add_job(state, "a2", 0, 0.4);
    const Plan plan = planned(state, ObjectiveKind::efficiency);
    expect_quotas(plan, {100, 0});
    expect_steady_rates(plan, {0.4, 0.6, 0.4});
    EXPECT_NEAR(plan.steady_remote_bytes_per_second / kBytesPerGB, 0.6, kTolerance);
}

// Density would give A all the cache, which would push b below its equal share of 0.1. So A gets x GB, the most that
// leaves both jobs their equal shares. The misses of a and b then use the whole remote:
// 0.05 / 0.95 * (1 - x / 1000) + 0.1 * x / 100 = 0.1, so x = 50.
TEST(Efficiency, StopsBeforeJobFallsBelowEqualShare) {
    ClusterState state = cluster(0.1, 100);
    add_dataset(state, "A", 1000);
    add_dataset(state, "B", 100);
    add_job(state, "a", 0, 10);
    add_job(state, "b", 1, 0.5);
    const Plan plan = planned(state, ObjectiveKind::efficiency);
    expect_equal_shares(plan, {0.05 / 0.95, 0.1});
    expect_quotas(plan, {50, 50});
    expect_steady_rates(plan, {0.05 / 0.95, 0.1});
}

// --- utilisation

// "hungry" has one GPU that reads 10 GB/s, "frugal" one that reads 1, and "large" four that read 1 each. Each job has a
// third of the remote. The bandwidth that "frugal" leaves goes to "large", whose GPUs read less each: there it keeps
// more GPUs busy.
TEST(Utilisation, JobThatReadsLessPerGpuIsServedFirst) {
    ClusterState state = cluster(4, 0);
    add_dataset(state, "A", 1000);
    add_dataset(state, "B", 1000);
    add_dataset(state, "C", 1000);
    add_job(state, "hungry", 0, 10);
    add_job(state, "frugal", 1, 1);
    add_job(state, "large", 2, 4);
    state.jobs[2].gpus = state.jobs[2].placement[0].gpus = 4;
    const Plan plan = planned(state, ObjectiveKind::utilisation);
    expect_steady_rates(plan, {4.0 / 3, 1, 5.0 / 3});
    state.jobs[0].weight = 100;
    expect_steady_rates(planned(state, ObjectiveKind::utilisation), {5.0 / 3, 1, 4.0 / 3});
}

// The cache goes where it keeps the most GPUs busy: to eight GPUs that read 6 GB/s together, not to one that reads 8.
TEST(Utilisation, CacheGoesToJobWithMoreGpus) {
    ClusterState state = cluster(1, 100);
    add_dataset(state, "A", 100);
    add_dataset(state, "B", 100);
    add_job(state, "one", 0, 8);
    add_job(state, "eight", 1, 6);
    state.jobs[1].gpus = state.jobs[1].placement[0].gpus = 8;
    expect_quotas(planned(state, ObjectiveKind::utilisation), {0, 100});
    expect_quotas(planned(state, ObjectiveKind::throughput), {100, 0});
}

// --- throughput

// The same cluster as in StopsBeforeJobFallsBelowEqualShare. With its dataset cached, b needs no remote bandwidth and
// leaves all of it to a.
TEST(Throughput, DensestDatasetIsPassedOverForLargerSum) {
    ClusterState state = cluster(0.1, 100);
    add_dataset(state, "A", 1000);
    add_dataset(state, "B", 100);
    add_job(state, "a", 0, 10);
    add_job(state, "b", 1, 0.5);
    const Plan plan = planned(state, ObjectiveKind::throughput);
    expect_quotas(plan, {0, 100});
    expect_steady_rates(plan, {0.1, 0.5});
}

// S must be cached for s to have its equal share. The other 52 GB make the larger sum at A, though the two jobs of B
// gain more from each of these bytes at their equal shares' rates: a = (0.3 - 2 * e_b) / (1 - 52 / 115).
TEST(Throughput, CacheGoesToLargestSumBesideCacheOfEqualShares) {
    ClusterState state = cluster(0.3, 53);
    add_dataset(state, "A", 115);
    add_dataset(state, "B", 208);
    add_dataset(state, "S", 1);
    add_job(state, "a", 0, 1);
    add_job(state, "b1", 1, 1);
    add_job(state, "b2", 1, 3);
    add_job(state, "s", 2, 1);
    const Plan plan = planned(state, ObjectiveKind::throughput);
    expect_quotas(plan, {52, 0, 1});
    const double equal_b = 0.075 / (1 - 26.5 / 208);
    expect_steady_rates(plan, {(0.3 - 2 * equal_b) / (1 - 52.0 / 115), equal_b, equal_b, 1});
}

// Returns the best sum of rates over all splits of the cache in hundredths. For each split, every job first gets its
// equal share. The bandwidth that is left goes to the jobs with the lowest miss ratio first.
double best_of_grid(const ClusterState& state, const Plan& plan) {
    constexpr int kParts = 100;
    const auto cache = static_cast<double>(state.nodes[0].disk_bytes);
    double best = 0;
    for (int first = 0; first <= kParts; ++first) {
        for (int second = 0; first + second <= kParts; ++second) {
            const std::array parts{first, second, kParts - first - second};
            std::array<double, 3> miss{}, rate{};
            double left = state.remote_bytes_per_second;
            for (std::size_t j = 0; j < 3; ++j) {
                const auto size = static_cast<double>(state.datasets[j].size_bytes);
                miss[j] = std::max(0.0, 1 - cache * parts[j] / kParts / size);
                rate[j] = plan.jobs[j].equal_share_bytes_per_second;
                left -= rate[j] * miss[j];
            }
            if (left < 0) continue;
            std::array<std::size_t, 3> order{0, 1, 2};
            std::ranges::sort(order, {}, [&](std::size_t j) { return miss[j]; });
            for (const std::size_t j : order) {
                const double wanted = state.jobs[j].ideal_bytes_per_second - rate[j];
                const double more = miss[j] > 0 ? std::min(wanted, left / miss[j]) : wanted;
                rate[j] += more;
                left -= more * miss[j];
            }
            best = std::max(best, std::accumulate(rate.begin(), rate.end(), 0.0));
        }
    }
    return best;
}

TEST(Throughput, SumIsWithinOnePercentOfBestGridSplit) {
    constexpr int kCases = 300;
    std::mt19937_64 random(1);
    const auto spread = [&](double low, double high) {
        return low * std::exp(static_cast<double>(random() >> 11) * 0x1p-53 * std::log(high / low));
    };
    int within = 0;
    int remote_bound = 0;
    double worst = 1;
    for (int k = 0; k < kCases; ++k) {
        ClusterState state = cluster(spread(0.1, 2), spread(20, 1000));
        for (const char* name : {"A", "B", "C"}) add_dataset(state, name, spread(20, 1000));
        std::uint32_t dataset = 0;
        for (const char* name : {"a", "b", "c"}) add_job(state, name, dataset++, spread(0.1, 5));
        const Plan plan = planned(state, ObjectiveKind::throughput);
        double sum = 0;
        double ideals = 0;
        for (const JobPlan& job : plan.jobs) sum += job.steady_bytes_per_second;
        for (const ClusterJob& job : state.jobs) ideals += job.ideal_bytes_per_second;
        const double best = best_of_grid(state, plan);
        ASSERT_GT(best, 0) << "case " << k;
        within += sum >= 0.99 * best;
        remote_bound += best < 0.99 * ideals;
        worst = std::min(worst, sum / best);
    }
    RecordProperty("percent_within_one_percent", std::to_string(100.0 * within / kCases));
    RecordProperty("worst_ratio", std::to_string(worst));
    EXPECT_GE(within, kCases * 95 / 100);
    EXPECT_GT(remote_bound, kCases / 2) << "the remote binds in too few of the cases to show anything";
}

// --- max_min

// a reads at f* from its cache alone. This leaves 50 GB for b: r * (1 - 50 / 200) = 0.3.
TEST(MaxMin, LevelIsHighestThatRemoteAllows) {
    ClusterState state = cluster(0.3, 100);
    add_dataset(state, "A", 50);
    add_dataset(state, "B", 200);
    add_job(state, "a", 0, 1);
    add_job(state, "b", 1, 1);
    const Plan plan = planned(state, ObjectiveKind::max_min);
    expect_equal_shares(plan, {1, 0.2});
    expect_quotas(plan, {50, 50});
    expect_steady_rates(plan, {1, 0.4});
}

// c needs only 0.1. a and b split the other 0.8 as 1 : 1.2, at rates level * weight * 0.3.
TEST(MaxMin, RateLeftByOthersIsSplitByWeight) {
    ClusterState state = cluster(0.9, 0);
    for (const char* name : {"A", "B", "C"}) add_dataset(state, name, 100);
    add_job(state, "a", 0, 1);
    add_job(state, "b", 1, 1).weight = 1.2;
    add_job(state, "c", 2, 0.1);
    const Plan plan = planned(state, ObjectiveKind::max_min);
    expect_equal_shares(plan, {0.3, 0.3, 0.1});
    expect_steady_rates(plan, {0.8 / 2.2, 0.8 * 1.2 / 2.2, 0.1});
    expect_bandwidths(plan, {0.8 / 2.2, 0.8 * 1.2 / 2.2, 0.1});
}

TEST(MaxMin, LargeWeightTakesNoOtherJobsEqualShare) {
    ClusterState state = cluster(0.9, 0);
    for (const char* name : {"A", "B", "C"}) add_dataset(state, name, 100);
    add_job(state, "a", 0, 1);
    add_job(state, "b", 1, 1).weight = 100;
    add_job(state, "c", 2, 0.1);
    expect_steady_rates(planned(state, ObjectiveKind::max_min), {0.3, 0.5, 0.1});
}

// Caching either dataset gives the same smallest rate. The job whose dataset is cached needs no remote and rises to f*.
TEST(MaxMin, OtherJobsRiseWhenOneIsHeldBack) {
    ClusterState state = cluster(1, 100);
    add_dataset(state, "A", 100);
    add_dataset(state, "B", 100);
    add_job(state, "a", 0, 10);
    add_job(state, "b", 1, 10);
    Plan plan = planned(state, ObjectiveKind::max_min);
    expect_quotas(plan, {100, 0});
    expect_steady_rates(plan, {10, 1});
    // At any max-min level, b's rate is now twice a's, so caching b's dataset saves more.
    state.jobs[1].weight = 2;
    plan = planned(state, ObjectiveKind::max_min);
    expect_quotas(plan, {0, 100});
    expect_steady_rates(plan, {1, 10});
}

// --- the baseline and operators' settings

TEST(EqualShares, DatasetGetsOneEqualPartPerJob) {
    ClusterState state = cluster(0.9, 90);
    add_dataset(state, "A", 40);
    add_dataset(state, "B", 100);
    add_job(state, "a", 0, 2);
    add_job(state, "b1", 1, 2);
    add_job(state, "b2", 1, 2);
    const Plan plan = planned(state, ObjectiveKind::equal_shares);
    expect_quotas(plan, {30, 60});
    expect_steady_rates(plan, {0.3 / 0.25, 0.3 / 0.4, 0.3 / 0.4});
    expect_bandwidths(plan, {0.3, 0.3, 0.3});
}

TEST(EqualShares, QuotaBeyondDatasetSizeStaysUnused) {
    ClusterState state = cluster(1, 100);
    add_dataset(state, "A", 30);
    add_dataset(state, "B", 100);
    add_job(state, "a", 0, 1);
    add_job(state, "b", 1, 2);
    const Plan plan = planned(state, ObjectiveKind::equal_shares);
    expect_quotas(plan, {30, 50});
    expect_steady_rates(plan, {1, 1});
}

TEST(Pinned, QuotasAndBandwidthAreAsOperatorSet) {
    ClusterState state = cluster(1, 100);
    add_dataset(state, "A", 100).quota_floor_bytes = bytes(30);
    add_dataset(state, "B", 100).quota_floor_bytes = bytes(20);
    add_job(state, "a", 0, 1).bandwidth_floor_bytes_per_second = 0.2 * kBytesPerGB;
    add_job(state, "b", 1, 1);
    const Plan plan = planned(state, ObjectiveKind::pinned);
    expect_quotas(plan, {30, 20});
    // The other 0.8 is split equally.
    expect_bandwidths(plan, {0.6, 0.4});
    expect_steady_rates(plan, {0.6 / 0.7, 0.4 / 0.8});
    expect_rates_now(plan, {0.6, 0.4});
}

// --- floors and caps

TEST(OperatorLimits, MaxMinGivesJobTheRateThatItsFloorAllows) {
    // a hits 99 %, so its floor of 0.1 is enough for its f* of 4. b gets the remaining 0.9 and cannot rise further.
    ClusterState state = cluster(1, 0);
    add_dataset(state, "A", 100);
    add_dataset(state, "B", 100);
    for (const char* name : {"a", "b"}) {
        ClusterJob& job = add_job(state, name, name[0] == 'a' ? 0 : 1, 4);
        job.unread_bytes = bytes(100);
        job.bandwidth_floor_bytes_per_second = 0.1 * kBytesPerGB;
    }
    state.jobs[0].unread_cached_bytes = bytes(99);
    Plan plan = planned(state, ObjectiveKind::max_min);
    EXPECT_NEAR(plan.jobs[0].predicted_bytes_per_second / kBytesPerGB, 4, kTolerance);
    EXPECT_NEAR(plan.jobs[1].predicted_bytes_per_second / kBytesPerGB, 0.9, kTolerance);
    EXPECT_NEAR(plan.jobs[0].bandwidth_bytes_per_second / kBytesPerGB, 0.1, kTolerance);
    // Above the rate that its floor allows, a job rises with the others. The floor of 0.1 now allows a only 0.2.
    state.jobs[0].unread_cached_bytes = bytes(50);
    plan = planned(state, ObjectiveKind::max_min);
    EXPECT_NEAR(plan.jobs[0].predicted_bytes_per_second, 2 * plan.jobs[0].bandwidth_bytes_per_second, 1e3);
    EXPECT_GT(plan.jobs[0].predicted_bytes_per_second / kBytesPerGB, 0.2);
}

// The remote has 1 GB/s, and the cache has room for one of two datasets of 100 GB. f* is 1 for "a" and `ideal_b` for
// "b".
ClusterState two_alike(double ideal_b) {
    ClusterState state = cluster(1, 100);
    add_dataset(state, "A", 100);
    add_dataset(state, "B", 100);
    add_job(state, "a", 0, 1);
    add_job(state, "b", 1, ideal_b);
    return state;
}

TEST(OperatorLimits, CappedJobKeepsItsEqualShare) {
    ClusterState state = two_alike(2);
    state.jobs[0].bandwidth_cap_bytes_per_second = 0.3 * kBytesPerGB;
    Plan plan = planned(state, ObjectiveKind::efficiency);
    expect_equal_shares(plan, {0.6, 1});
    expect_quotas(plan, {50, 50});
    expect_steady_rates(plan, {0.6, 1.4});
    // Each job gets 1.2 times its share: a misses 5/12 of 0.72, b 7/12 of 1.2.
    plan = planned(state, ObjectiveKind::max_min);
    EXPECT_NEAR(static_cast<double>(plan.datasets[0].quota_bytes), 100e9 * 7 / 12, 10);
    expect_steady_rates(plan, {0.72, 1.2});
}

TEST(OperatorLimits, CacheOfJobWithFloorStopsWhereItSavesNoMoreBandwidth) {
    ClusterState state = two_alike(0.9);
    state.jobs[0].bandwidth_floor_bytes_per_second = 0.4 * kBytesPerGB;
    for (const ObjectiveKind kind : {ObjectiveKind::efficiency, ObjectiveKind::max_min}) {
        const Plan plan = planned(state, kind);
        expect_quotas(plan, {60, 40});
        expect_steady_rates(plan, {1, 0.9});
    }
}

TEST(OperatorLimits, JobWhoseFloorExceedsItsRateLeavesTheCacheToOthers) {
    ClusterState state = cluster(1, 100);
    add_dataset(state, "A", 50);
    add_dataset(state, "B", 100);
    add_job(state, "a", 0, 0.5);
    add_job(state, "b", 1, 0.8);
    state.jobs[0].bandwidth_floor_bytes_per_second = 0.6 * kBytesPerGB;
    for (const ObjectiveKind kind : {ObjectiveKind::efficiency, ObjectiveKind::max_min}) {
        const Plan plan = planned(state, kind);
        expect_quotas(plan, {0, 100});
        expect_steady_rates(plan, {0.5, 0.8});
    }
}

TEST(OperatorLimits, FloorsAndCapsHoldAndOnlyTheRestIsPlanned) {
    ClusterState state = cluster(1, 100);
    add_dataset(state, "A", 100).quota_cap_bytes = bytes(40);
    add_dataset(state, "B", 100);
    add_dataset(state, "C", 100).quota_floor_bytes = bytes(10);
    add_job(state, "a", 0, 1).bandwidth_cap_bytes_per_second = 0.3 * kBytesPerGB;
    add_job(state, "b", 1, 0.5).bandwidth_floor_bytes_per_second = 0.4 * kBytesPerGB;
    for (const ObjectiveKind kind :
         {ObjectiveKind::efficiency, ObjectiveKind::max_min, ObjectiveKind::throughput, ObjectiveKind::utilisation}) {
        const Plan plan = planned(state, kind);
        expect_quotas(plan, {40, 50, 10});
        expect_equal_shares(plan, {0.5, 0.5});
        expect_steady_rates(plan, {0.3 / 0.6, 0.5});
        expect_rates_now(plan, {0.3, 0.5});
        // 0.2 is left over, half for each job: b takes its 0.1. a is at its cap and takes none.
        expect_bandwidths(plan, {0.3, 0.6});
    }
}

// --- networks and disks

TEST(Bounds, NetworkBoundJobLeavesRemoteToOthers) {
    ClusterState state = cluster(1, 0);
    state.nodes.push_back({.name = "slow", .gpus = 100, .nic_bytes_per_second = 0.2 * kBytesPerGB});
    add_dataset(state, "A", 100);
    add_dataset(state, "B", 100);
    add_job(state, "a", 0, 1, 1);
    add_job(state, "b", 1, 1, 0);
    for (const ObjectiveKind kind :
         {ObjectiveKind::efficiency, ObjectiveKind::max_min, ObjectiveKind::throughput, ObjectiveKind::utilisation}) {
        const Plan plan = planned(state, kind);
        expect_equal_shares(plan, {0.2, 0.5});
        expect_steady_rates(plan, {0.2, 0.8});
        expect_bandwidths(plan, {0.2, 0.8});
    }
}

// If a ran at f*, A would be the denser dataset, but a cannot read A faster than 0.2 from the other node.
TEST(Bounds, NetworkBoundJobLeavesCacheToOthers) {
    ClusterState state = cluster(1, 100);
    state.nodes.push_back({.name = "slow", .gpus = 100, .nic_bytes_per_second = 0.2 * kBytesPerGB});
    add_dataset(state, "A", 100);
    add_dataset(state, "B", 100);
    add_job(state, "a", 0, 1, 1);
    add_job(state, "b", 1, 0.5, 0);
    const Plan plan = planned(state, ObjectiveKind::efficiency);
    expect_quotas(plan, {0, 100});
    expect_steady_rates(plan, {0.2, 0.5});
    EXPECT_NEAR(plan.steady_remote_bytes_per_second / kBytesPerGB, 0.2, kTolerance);
}

TEST(Bounds, ServingNodeIsBoundByOutgoingNetwork) {
    ClusterState state = cluster(1, 100);
    state.nodes[0].nic_bytes_per_second = 0.3 * kBytesPerGB;
    state.nodes.push_back({.name = "reader", .gpus = 100});
    add_dataset(state, "A", 100);
    add_job(state, "a", 0, 5, 1);
    add_job(state, "near", 0, 5, 0);
    // The job elsewhere gets 0.3 from the node and 0.3 from the remote. Hits in the node's own cache do not use the
    // network, and what the near job misses comes in at 0.3.
    const Plan plan = planned(state, ObjectiveKind::max_min);
    EXPECT_NEAR(static_cast<double>(plan.datasets[0].quota_bytes) / kBytesPerGB, 50, 1e-4);
    EXPECT_NEAR(plan.jobs[0].steady_bytes_per_second / kBytesPerGB, 0.6, kTolerance);
    EXPECT_NEAR(plan.jobs[1].steady_bytes_per_second / kBytesPerGB, 0.6, kTolerance);
    state.datasets[0].quota_floor_bytes = bytes(100);
    const Plan whole = planned(state, ObjectiveKind::max_min);
    EXPECT_NEAR(whole.jobs[0].steady_bytes_per_second / kBytesPerGB, 0.3, kTolerance);
    EXPECT_NEAR(whole.jobs[1].steady_bytes_per_second / kBytesPerGB, 5, kTolerance);
}

TEST(Bounds, DiskHitsAreBoundByDiskReadRate) {
    ClusterState state = cluster(1, 50);
    state.nodes[0].disk_read_bytes_per_second = 0.3 * kBytesPerGB;
    add_dataset(state, "A", 100);
    add_job(state, "a", 0, 5);
    // The disk gives 0.3 and the remote 1, so the cache holds no more of the dataset than the disk can serve.
    EXPECT_NEAR(planned(state, ObjectiveKind::max_min).jobs[0].steady_bytes_per_second / kBytesPerGB, 1.3, 1e-5);
    // The search for a sum of rates halves a job's range six times.
    EXPECT_NEAR(planned(state, ObjectiveKind::throughput).jobs[0].steady_bytes_per_second / kBytesPerGB, 1.3, 0.013);
    // Half of the bytes read come from the disk.
    state.datasets[0].quota_floor_bytes = bytes(50);
    expect_steady_rates(planned(state, ObjectiveKind::max_min), {0.6});
    state.datasets[0].quota_floor_bytes = 0;
    // Memory has no such bound.
    state.nodes[0].memory_bytes = bytes(50);
    state.nodes[0].disk_bytes = 0;
    expect_steady_rates(planned(state, ObjectiveKind::max_min), {2});
}

TEST(Bounds, EqualShareHasAnEqualPartOfTheDisk) {
    ClusterState state = cluster(1, 80);
    state.nodes[0].disk_read_bytes_per_second = 0.3 * kBytesPerGB;
    add_dataset(state, "A", 80);
    add_dataset(state, "B", 80);
    add_job(state, "a", 0, 5);
    add_job(state, "b", 1, 5);
    // Each may read 0.15 from the disk, which is half of its bytes.
    expect_equal_shares(planned(state, ObjectiveKind::max_min), {0.3, 0.3});
    // Three quarters of what is hit are on the disk now.
    state.nodes[0].memory_bytes = bytes(20);
    state.nodes[0].disk_bytes = bytes(60);
    expect_equal_shares(planned(state, ObjectiveKind::max_min), {0.4, 0.4});
}

TEST(Bounds, EqualShareHasAnEqualPartOfTheServingNodesNetwork) {
    ClusterState state = cluster(10, 100);
    state.nodes[0].nic_bytes_per_second = 0.3 * kBytesPerGB;
    state.nodes.push_back({.name = "reader", .gpus = 100});
    add_dataset(state, "A", 50);
    add_job(state, "a", 0, 5, 1);
    add_job(state, "b", 0, 5, 1);
    add_job(state, "near", 0, 0.2, 0);
    // The job on the serving node needs none of the network's outgoing half.
    expect_equal_shares(planned(state, ObjectiveKind::max_min), {0.15, 0.15, 0.2});
}

}  // namespace
}  // namespace larder::test
