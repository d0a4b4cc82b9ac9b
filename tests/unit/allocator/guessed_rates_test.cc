#include "allocator/guessed_rates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "allocator/assign.h"
#include "tests/oracle/random_state.h"
#include "tests/support/property_cases.h"
#include "tests/unit/allocator/by_hand.h"

namespace larder::test {
namespace {

using namespace allocator;

// "known" reads dataset 0, which is cached whole. "new" reads dataset 1, of which nothing is cached. Its f* is assumed
// to be the whole remote.
ClusterState with_new_job(bool is_guess) {
    ClusterState state = cluster(10, 100);
    ClusterDataset& cached = add_dataset(state, "cached", 100);
    cached.quotas = cached.cached = {{.node = 0, .disk_bytes = bytes(100)}};
    add_dataset(state, "uncached", 100);
    add_job(state, "known", 0, 2);
    add_job(state, "new", 1, 10).ideal_is_guess = is_guess;
    return state;
}

TEST(GuessedRates, GuessTakesNoCachedBytes) {
    // With this f*, the best split gives the cache to the new job: the remote carries the known one's 2 GB/s.
    expect_quotas(planned(with_new_job(false), ObjectiveKind::max_min), {0, 100});
    const Plan plan = planned(with_new_job(true), ObjectiveKind::max_min);
    expect_quotas(plan, {100, 0});
    expect_steady_rates(plan, {2, 10});
}

TEST(GuessedRates, GuessTakesRoomThatHoldsNothing) {
    ClusterState state = with_new_job(true);
    state.datasets[0].cached[0].disk_bytes = bytes(30);
    expect_quotas(planned(state, ObjectiveKind::max_min), {30, 70});
}

TEST(GuessedRates, JobsWithKnownRatesTakeCacheFromEachOther) {
    ClusterState state = with_new_job(true);
    add_dataset(state, "wanted", 60);
    add_job(state, "fast", 2, 20);
    // Without the new job, "fast" gets 60 GB of the cache. So "cached" loses 60 GB, and nothing to the new job.
    const Plan of_known_jobs = planned(without_guesses(state), ObjectiveKind::max_min);
    expect_quotas(of_known_jobs, {40, 0, 60});
    const Plan plan = planned(state, ObjectiveKind::max_min);
    EXPECT_NEAR(static_cast<double>(plan.datasets[0].quota_bytes) / kBytesPerGB, 40, kTolerance);
}

TEST(GuessedRates, QuotaHeldByOperatorIsNoReasonForAFloor) {
    ClusterState state = with_new_job(true);
    state.datasets[0].held = {{.node = 0, .disk_bytes = bytes(20)}};
    expect_quotas(planned(state, ObjectiveKind::max_min), {20, 80});
}

TEST(GuessedRates, ObjectivesThatDoNotChooseQuotasIgnoreGuesses) {
    for (const ObjectiveKind kind : {ObjectiveKind::equal_shares, ObjectiveKind::pinned}) {
        EXPECT_EQ(planned(with_new_job(true), kind).datasets[0].quotas,
                  planned(with_new_job(false), kind).datasets[0].quotas);
    }
}

// In clusters whose caches are full, some jobs' f* becomes a guess.
TEST(GuessedRates, NoDatasetOfKnownJobsLosesCachedBytesToGuesses) {
    constexpr ObjectiveKind kChoosing[] = {ObjectiveKind::efficiency, ObjectiveKind::max_min, ObjectiveKind::throughput,
                                           ObjectiveKind::utilisation};
    const std::uint64_t count = property_cases(4'000);
    std::uint64_t kept = 0;
    for (std::uint64_t seed = 0; seed < count; ++seed) {
        ClusterState state = RandomState(seed, {.turns = true}).make();
        const Objective objective{.kind = kChoosing[seed % std::size(kChoosing)], .effort = effort_of(seed)};
        const Plan filled = planned(state, objective);
        for (std::size_t i = 0; i < state.datasets.size(); ++i) {
            state.datasets[i].quotas = state.datasets[i].cached = filled.datasets[i].quotas;
        }
        std::mt19937_64 random(seed);
        for (ClusterJob& job : state.jobs) {
            job.unread_bytes = job.unread_cached_bytes = 0;
            if (random() % 2 == 0 || job.placement.empty()) continue;
            job.ideal_is_guess = true;
            job.ideal_bytes_per_second = state.remote_bytes_per_second;
        }
        const Plan of_known_jobs = planned(without_guesses(state), objective);
        const Plan plan = planned(state, objective);
        ClusterState believed = state;
        for (ClusterJob& job : believed.jobs) job.ideal_is_guess = false;
        kept += gives_cache_to_guesses(state, planned(believed, objective)) ? 1 : 0;
        std::vector<NodeCache> used(state.nodes.size());
        for (std::size_t i = 0; i < state.datasets.size(); ++i) {
            for (const NodeCache& quota : plan.datasets[i].quotas) {
                used[quota.node].memory_bytes += quota.memory_bytes;
                used[quota.node].disk_bytes += quota.disk_bytes;
            }
            EXPECT_LE(plan.datasets[i].quota_bytes, state.datasets[i].quota_cap_bytes);
            const bool is_read = std::ranges::any_of(state.jobs, [&](const ClusterJob& job) {
                return job.dataset == i && !job.ideal_is_guess && !job.waits_for_gpus();
            });
            if (!is_read) continue;
            // Quotas are whole bytes on every node.
            EXPECT_GE(plan.datasets[i].quota_bytes + state.nodes.size(),
                      std::min(filled.datasets[i].quota_bytes, of_known_jobs.datasets[i].quota_bytes))
                << "dataset " << i;
        }
        for (std::size_t n = 0; n < used.size(); ++n) {
            EXPECT_LE(used[n].memory_bytes, state.nodes[n].memory_bytes);
            EXPECT_LE(used[n].disk_bytes, state.nodes[n].disk_bytes);
        }
        if (HasFailure()) FAIL() << "seed " << seed;
    }
    EXPECT_GT(kept, count / 20) << "guesses seldom matter in these clusters";
}

}  // namespace
}  // namespace larder::test
