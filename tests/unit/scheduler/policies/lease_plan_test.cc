#include "scheduler/policies/lease_plan.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler {
namespace {

using testing::ElementsAre;

class LeasePlans : public testing::Test {
protected:
    LeasePlan plan(std::uint32_t leases) { return {world_.snapshot(), 100, 100, leases}; }

    tests::World world_{1, {"a", "b"}};
    LeaseDemand demand_{.gpus = 8, .rates = {1, 0}, .remaining_bytes = 250};
};

TEST_F(LeasePlans, TakesFirstFreeLeases) {
    LeasePlan leases = plan(5);
    leases.take(0, 1, 1);
    const LeaseFit fit = leases.fit(demand_);
    EXPECT_EQ(fit.gpu_type, 0);
    EXPECT_THAT(fit.leases, ElementsAre(0, 2, 3));
    EXPECT_EQ(fit.end_s, 350);
    leases.take(fit, demand_);
    EXPECT_THAT(leases.fit(demand_).leases, ElementsAre(4));
    EXPECT_EQ(leases.fit(demand_).end_s, 650);  // the job continues after the last lease
}

TEST_F(LeasePlans, TakesLatestFreeLeasesBeforeTheDeadline) {
    LeasePlan leases = plan(8);
    leases.take(0, 4, 1);
    demand_.deadline_s = 650;
    EXPECT_THAT(leases.fit_late(demand_).leases, ElementsAre(3, 5, 6));
    EXPECT_EQ(leases.fit_late(demand_).end_s, 650);
    demand_.restart_s = 60;  // of each of two spans
    EXPECT_THAT(leases.fit_late(demand_).leases, ElementsAre(1, 2, 3, 5));
    EXPECT_EQ(leases.fit_late(demand_).end_s, 570);
    demand_.deadline_s = 240;
    EXPECT_FALSE(leases.fit_late(demand_).meets(240)) << "a started job restarts";
    demand_.restart_s = 0;
    demand_.deadline_s = 260;
    EXPECT_TRUE(leases.fit_late(demand_).starts_now());
}

TEST_F(LeasePlans, CountsRestartAfterEachGap) {
    LeasePlan leases = plan(6);
    leases.take(0, 1, 1);
    demand_.restart_s = 20;
    EXPECT_EQ(leases.fit(demand_).end_s, 370);
    demand_.started = true;  // the job has run before, but is not running now
    EXPECT_EQ(leases.fit(demand_).end_s, 390);
    demand_.runs = true;
    EXPECT_EQ(leases.fit(demand_).end_s, 370);
}

TEST_F(LeasePlans, RestartMayTakeMoreThanOneLease) {
    LeasePlan leases = plan(6);
    demand_.started = true;
    demand_.restart_s = 120;
    EXPECT_EQ(leases.fit(demand_).end_s, 370);
    world_.now_s = 90;  // the current lease has 10 s left
    EXPECT_EQ(plan(6).fit(demand_).end_s, 90 + 120 + 250);
}

TEST_F(LeasePlans, NonPreemptibleJobGetsConsecutiveLeases) {
    LeasePlan leases = plan(5);
    leases.take(0, 1, 1);
    demand_.preemptible = false;
    EXPECT_THAT(leases.fit(demand_).leases, ElementsAre(2, 3, 4));
}

TEST_F(LeasePlans, ChoosesTypeThatEndsFirst) {
    LeasePlan leases = plan(5);
    demand_.rates = {1, 2};
    EXPECT_EQ(leases.fit(demand_).gpu_type, 1);
    for (std::uint32_t lease = 0; lease < 3; ++lease) leases.take(1, lease, 1);
    EXPECT_EQ(leases.fit(demand_).gpu_type, 0);
}

TEST_F(LeasePlans, HoldsGpusUntilGivenTime) {
    LeasePlan leases = plan(4);
    leases.hold(0, 8, 200);
    EXPECT_EQ(leases.free(0, 1), 0);
    EXPECT_EQ(leases.free(0, 2), 8);
    leases.hold(0, 8, 201);
    EXPECT_EQ(leases.free(0, 2), 0);
}

// Widths double with distance from now, and the last end reaches the horizon. A later plan has every end of an earlier
// plan that is still ahead, so that a plan stays valid.
TEST(WideningEnds, AreNestedAsTimeGoesOn) {
    constexpr double kLease = 60;
    constexpr double kLast = 60 * 5000;
    std::vector<double> before = widening_ends_s(kLease, kLease, kLast);
    EXPECT_LT(before.size(), 300);
    for (int lease = 2; lease < 400; ++lease) {
        const std::vector<double> after = widening_ends_s(kLease * lease, kLease, kLast);
        EXPECT_EQ(after.front(), kLease * lease);
        EXPECT_GE(after.back(), kLast);
        EXPECT_TRUE(std::ranges::is_sorted(after));
        for (const double end_s : before) {
            if (end_s >= after.front() && end_s <= kLast) {
                EXPECT_TRUE(std::ranges::binary_search(after, end_s)) << end_s << " at lease " << lease;
            }
        }
        before = after;
    }
}

}  // namespace
}  // namespace larder::scheduler
