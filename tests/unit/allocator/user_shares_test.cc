#include "allocator/user_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "allocator/assign.h"
#include "tests/oracle/random_state.h"
#include "tests/support/property_cases.h"
#include "tests/unit/allocator/by_hand.h"

namespace larder::test {
namespace {

using namespace allocator;

constexpr ObjectiveKind kObjectives[] = {ObjectiveKind::efficiency, ObjectiveKind::max_min, ObjectiveKind::throughput,
                                         ObjectiveKind::equal_shares, ObjectiveKind::utilisation};

double sum(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0);
}

TEST(FairShares, SmallNeedsAreMetAndTheRestIsSharedByWeight) {
    const std::vector<UserClaim> claims{{.need = 10}, {.need = 1e9, .weight = 1}, {.need = 1e9, .weight = 2}};
    const std::vector<double> shares = fair_shares(100, claims);
    EXPECT_DOUBLE_EQ(shares[0], 10);
    EXPECT_DOUBLE_EQ(shares[1], 30);
    EXPECT_DOUBLE_EQ(shares[2], 60);
}

TEST(FairShares, NothingIsLeftWhileSomebodyNeedsMore) {
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> amount(0.001, 1);
    for (int round = 0; round < 1000; ++round) {
        std::vector<UserClaim> claims(1 + random() % 20);
        double needs = 0;
        for (UserClaim& claim : claims) {
            claim = {.need = random() % 5 == 0 ? 0 : amount(random), .weight = amount(random)};
            needs += claim.need;
        }
        const double total = amount(random) * 10;
        const std::vector<double> shares = fair_shares(total, claims);
        ASSERT_NEAR(sum(shares), std::min(total, needs), 1e-9);
        for (std::size_t i = 0; i < claims.size(); ++i) {
            ASSERT_LE(shares[i], claims[i].need + 1e-12);
            if (shares[i] >= claims[i].need - 1e-9) continue;
            // No other claim has more for its weight than one that is not met.
            for (std::size_t k = 0; k < claims.size(); ++k) {
                ASSERT_LE(shares[k] / claims[k].weight, shares[i] / claims[i].weight + 1e-9);
            }
        }
    }
}

struct UserTotals {
    double need = 0;
    double granted = 0;
    double weight = 0;
};

std::map<std::uint32_t, UserTotals> totals_of(const ClusterState& state, const Plan& plan) {
    std::map<std::uint32_t, UserTotals> users;
    for (std::size_t j = 0; j < state.jobs.size(); ++j) {
        if (!plan.jobs[j].running) continue;
        UserTotals& user = users[*state.jobs[j].user];
        user.need += state.jobs[j].ideal_bytes_per_second * (1 - plan.jobs[j].hit_ratio);
        user.granted += plan.jobs[j].bandwidth_bytes_per_second;
        user.weight = 1;
    }
    return users;
}

TEST(UserShares, NoUserGetsLessThanItNeedsOrItsFairShare) {
    const std::uint64_t count = property_cases(3'000);
    std::uint64_t raised = 0;
    for (std::uint64_t seed = 0; seed < count; ++seed) {
        ClusterState state = RandomState(seed, {.operator_limits = false, .node_limits = false}).make();
        const Objective objective{.kind = kObjectives[seed % std::size(kObjectives)], .effort = effort_of(seed)};
        const Plan without_users = planned(state, objective);
        std::mt19937_64 random(seed);
        const auto user_count = static_cast<std::uint32_t>(2 + random() % 3);
        for (ClusterJob& job : state.jobs) job.user = 1000 + static_cast<std::uint32_t>(random() % user_count);
        const Plan plan = planned(state, objective);
        const auto before = totals_of(state, without_users);
        const auto users = totals_of(state, plan);
        std::vector<UserClaim> claims;
        double granted = 0;
        for (const auto& [uid, user] : users) {
            claims.push_back({.need = user.need});
            granted += user.granted;
        }
        EXPECT_LE(granted, state.remote_bytes_per_second * (1 + 1e-9));
        const std::vector<double> fair = fair_shares(state.remote_bytes_per_second, claims);
        auto share = fair.begin();
        bool was_below = false;
        for (const auto& [uid, user] : users) {
            was_below = was_below || before.at(uid).granted < 0.99 * *share;
            EXPECT_GE(user.granted, 0.99 * *share++) << "user " << uid;
        }
        raised += was_below ? 1 : 0;
        if (HasFailure()) FAIL() << "seed " << seed << ", objective " << seed % std::size(kObjectives);
    }
    EXPECT_GT(raised, count / 20) << "the guarantee seldom matters in these clusters";
}

// A hostile user has many names, each with a forged f*.
TEST(UserShares, ManyNamesAndForgedRatesTakeNoOtherUsersShare) {
    for (const ObjectiveKind kind : kObjectives) {
        for (const double forged : {1e-6, 1.0, 1e6}) {
            ClusterState state = cluster(1, 10);
            state.nodes[0].gpus = 10'000;
            add_dataset(state, "victims", 100);
            add_dataset(state, "hostile", 100);
            add_job(state, "victim", 0, 2).user = 1001;
            for (int name = 0; name < 500; ++name) {
                add_job(state, ("hostile" + std::to_string(name)).c_str(), 1, forged).user = 1002;
            }
            const Plan plan = planned(state, kind);
            EXPECT_GE(plan.jobs[0].bandwidth_bytes_per_second, 0.499 * kBytesPerGB)
                << "objective " << static_cast<int>(kind) << ", forged f* " << forged << " GB/s";
        }
    }
}

TEST(UserShares, AdmittedJobsCountByWeightAndOthersOnce) {
    ClusterState state = cluster(8, 0);
    state.nodes[0].gpus = 10'000;
    add_dataset(state, "images", 100);
    for (int count = 0; count < 3; ++count) {
        ClusterJob& job = add_job(state, ("a" + std::to_string(count)).c_str(), 0, 100);
        job.user = 1001;
        job.is_admitted = true;
        job.weight = 2;
    }
    for (int count = 0; count < 20; ++count) add_job(state, ("b" + std::to_string(count)).c_str(), 0, 100).user = 1001;
    for (int count = 0; count < 2000; ++count) {
        add_job(state, ("c" + std::to_string(count)).c_str(), 0, 100).user = 1002;
    }
    const Plan plan = planned(state, ObjectiveKind::equal_shares);
    const auto users = totals_of(state, plan);
    EXPECT_NEAR(users.at(1001).granted / kBytesPerGB, 7, 0.01);
    EXPECT_NEAR(users.at(1002).granted / kBytesPerGB, 1, 0.01);
}

TEST(UserShares, UnneededPartGoesToOtherUsers) {
    ClusterState state = cluster(1, 0);
    state.nodes[0].gpus = 10'000;
    add_dataset(state, "images", 100);
    add_job(state, "small", 0, 0.1).user = 1001;
    for (int count = 0; count < 100; ++count) {
        add_job(state, ("large" + std::to_string(count)).c_str(), 0, 100).user = 1002;
    }
    const Plan plan = planned(state, ObjectiveKind::max_min);
    EXPECT_NEAR(plan.jobs[0].bandwidth_bytes_per_second / kBytesPerGB, 0.1, 1e-3);
    EXPECT_NEAR(totals_of(state, plan).at(1002).granted / kBytesPerGB, 0.9, 1e-3);
}

}  // namespace
}  // namespace larder::test
