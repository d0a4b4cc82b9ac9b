#include "scheduler/policies/lease_plan.h"

#include <gmock/gmock.h>

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

TEST_F(LeasePlans, TakesTheFirstThatAreFree) {
    LeasePlan leases = plan(5);
    leases.take(0, 1, 1);
    const LeaseFit fit = leases.fit(demand_);
    EXPECT_EQ(fit.gpu_type, 0);
    EXPECT_THAT(fit.leases, ElementsAre(0, 2, 3));
    EXPECT_EQ(fit.end_s, 350);
    leases.take(fit, 8);
    EXPECT_THAT(leases.fit(demand_).leases, ElementsAre(4));
    EXPECT_EQ(leases.fit(demand_).end_s, 650);  // on, after the last
}

TEST_F(LeasePlans, CountsARestartAfterEachGap) {
    LeasePlan leases = plan(6);
    leases.take(0, 1, 1);
    demand_.restart_s = 20;
    EXPECT_EQ(leases.fit(demand_).end_s, 370);
    demand_.started = true;  // before, but does not run
    EXPECT_EQ(leases.fit(demand_).end_s, 390);
    demand_.runs = true;
    EXPECT_EQ(leases.fit(demand_).end_s, 370);
}

TEST_F(LeasePlans, WhatCannotBeStoppedHasLeasesInARow) {
    LeasePlan leases = plan(5);
    leases.take(0, 1, 1);
    demand_.preemptible = false;
    EXPECT_THAT(leases.fit(demand_).leases, ElementsAre(2, 3, 4));
}

TEST_F(LeasePlans, ChoosesTheTypeThatEndsFirst) {
    LeasePlan leases = plan(5);
    demand_.rates = {1, 2};
    EXPECT_EQ(leases.fit(demand_).gpu_type, 1);
    for (std::uint32_t lease = 0; lease < 3; ++lease) leases.take(1, lease, 1);
    EXPECT_EQ(leases.fit(demand_).gpu_type, 0);
}

TEST_F(LeasePlans, HoldsGpusUpToATime) {
    LeasePlan leases = plan(4);
    leases.hold(0, 8, 200);
    EXPECT_EQ(leases.free(0, 1), 0);
    EXPECT_EQ(leases.free(0, 2), 8);
    leases.hold(0, 8, 201);
    EXPECT_EQ(leases.free(0, 2), 0);
}

}  // namespace
}  // namespace larder::scheduler
