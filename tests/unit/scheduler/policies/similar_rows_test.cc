#include "scheduler/policies/similar_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler::tests {
namespace {

TEST(MergeSimilarRows, LeavesFewKindsAndSmallErrors) {
    TestRandom random(1);
    std::vector<double> rows;
    for (int i = 0; i < 5000; ++i) rows.push_back(1 + 9 * random.part());
    const std::vector<double> before = rows;
    merge_similar_rows(rows, 1, 0, 64);
    EXPECT_LE(std::set<double>(rows.begin(), rows.end()).size(), 64U);
    for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_NEAR(rows[i] / before[i], 1, 0.1);
}

TEST(MergeSimilarRows, KeepsNamesAndZeros) {
    TestRandom random(2);
    constexpr std::size_t kWidth = 4;
    std::vector<double> rows;
    for (int i = 0; i < 3000; ++i) {
        rows.insert(rows.end(), {static_cast<double>(random.below(20)), random.below(3) == 0 ? 0 : random.part() + 0.01,
                                 random.part() + 0.01, 7});
    }
    const std::vector<double> before = rows;
    merge_similar_rows(rows, kWidth, 1, 100);
    std::set<std::vector<double>> kinds;
    for (std::size_t i = 0; i < rows.size(); i += kWidth) {
        EXPECT_EQ(rows[i], before[i]);
        EXPECT_EQ(rows[i + 1] == 0, before[i + 1] == 0);
        EXPECT_EQ(rows[i + 3], 7);
        kinds.insert(
            {rows.begin() + static_cast<std::ptrdiff_t>(i), rows.begin() + static_cast<std::ptrdiff_t>(i + kWidth)});
    }
    EXPECT_LE(kinds.size(), 100U);
    EXPECT_GE(kinds.size(), 90U);
}

TEST(MergeSimilarRows, ChangesNothingWhenKindsAreFew) {
    std::vector<double> rows{1, 2, 3, 1, 2, 3, 0, 0, 0};
    const std::vector<double> before = rows;
    merge_similar_rows(rows, 1, 0, 4);
    EXPECT_EQ(rows, before);
    merge_similar_rows({}, 1, 0, 4);
}

// One of 18 tenants has many jobs, no two of them alike. Another tenant has one job, which always runs by its weight.
TEST(MergeSimilarRows, KeepsTenantsApart) {
    World world(4, {"a", "b"});
    for (int tenant = 1; tenant < 18; ++tenant) world.tenants.push_back({.name = std::to_string(tenant)});
    TestRandom random(3);
    for (int j = 0; j < 400; ++j) {
        JobSpec& spec = world.add(1);
        spec.tenant = j == 0 ? 17 : 16;
        spec.ideal_bytes_per_second = {1e8 * (0.5 + random.part()), 1e8 * (0.5 + random.part())};
    }
    const auto policy = std::move(*make_policy("water-filling", {}));
    double ran_s = 0;
    for (int round = 0; round < 50; ++round) {
        ASSERT_TRUE(world.step(*policy));
        ran_s += world.states[0].running ? 360 : 0;
        world.pass(360);
    }
    EXPECT_GE(ran_s, 40 * 360) << "as one of the many jobs it would run in 8 rounds";
}

}  // namespace
}  // namespace larder::scheduler::tests
