#include "scheduler/decide.h"

#include <gmock/gmock.h>

#include <cmath>
#include <stdexcept>

#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Returns the decision that the test sets.
class FixedPolicy final : public Policy {
public:
    std::string_view name() const override { return "fixed"; }
    bool preempts() const override { return true; }
    bool sizes_jobs() const override { return true; }
    Result<Decision> decide(const Snapshot&) override {
        if (throws) throw std::runtime_error("no idea");
        return decision;
    }
    Decision decision;
    bool throws = false;
};

TEST(Decide, UnwantedJobIsStoppedWhenItsGpusAreNeeded) {
    tests::World world(1);
    world.add(8);
    world.add(8);
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 8}};
    ASSERT_TRUE(world.step(policy));
    policy.decision.wants = {{.job = 1, .gpus = 8}};
    const auto actions = world.step(policy);
    ASSERT_TRUE(actions);
    EXPECT_THAT(actions->stops, ElementsAre(0));
    EXPECT_THAT(world.running(), ElementsAre(1));
}

TEST(Decide, UnwantedJobRunsOnWhenItsGpusAreNotNeeded) {
    tests::World world(2);
    world.add(8);
    world.add(8);
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 8}};
    ASSERT_TRUE(world.step(policy));
    const Placement before = world.states[0].placement;
    policy.decision.wants = {{.job = 1, .gpus = 8}};
    const auto actions = world.step(policy);
    ASSERT_TRUE(actions);
    EXPECT_TRUE(actions->stops.empty());
    EXPECT_THAT(world.running(), ElementsAre(0, 1));
    EXPECT_EQ(world.states[0].placement, before);
}

TEST(Decide, NonPreemptibleJobIsNeverStopped) {
    tests::World world(1);
    world.add(8).preemptible = false;
    world.add(8);
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 8}};
    ASSERT_TRUE(world.step(policy));
    policy.decision.wants = {{.job = 1, .gpus = 8}};
    ASSERT_TRUE(world.step(policy));
    EXPECT_THAT(world.running(), ElementsAre(0));
}

TEST(Decide, ElasticJobGrowsOntoItsOwnGpus) {
    tests::World world(1);
    JobSpec& elastic = world.add(4);
    elastic.gpus_min = 2;
    elastic.gpus_max = 8;
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 4}};
    ASSERT_TRUE(world.step(policy));
    policy.decision.wants = {{.job = 0, .gpus = 8}};
    const auto actions = world.step(policy);
    ASSERT_TRUE(actions);
    EXPECT_THAT(actions->stops, ElementsAre(0));
    ASSERT_EQ(actions->starts.size(), 1);
    EXPECT_EQ(gpu_count(actions->starts[0].placement), 8);
}

TEST(Decide, PackedJobSharesGpusOfItsHost) {
    tests::World world(1);
    world.add(8);
    world.add(8);
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 8}, {.job = 1, .gpus = 8, .packed_with = 0}};
    ASSERT_TRUE(world.step(policy));
    EXPECT_THAT(world.running(), ElementsAre(0, 1));
    EXPECT_EQ(world.states[0].placement, world.states[1].placement);
    const auto again = world.step(policy);
    ASSERT_TRUE(again);
    EXPECT_TRUE(again->stops.empty() && again->starts.empty());
}

TEST(Decide, NoJobIsPackedOntoANodeThatTakesNoJobs) {
    tests::World world(2);
    world.add(16);
    world.add(16);
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 16}};
    ASSERT_TRUE(world.step(policy));
    world.pool->set_usable(1, false);
    policy.decision.wants = {{.job = 0, .gpus = 16}, {.job = 1, .gpus = 16, .packed_with = 0}};
    const auto actions = world.step(policy);
    ASSERT_TRUE(actions);
    EXPECT_TRUE(actions->starts.empty());
    EXPECT_THAT(world.running(), ElementsAre(0)) << "the host goes on";
    world.pool->set_usable(1, true);
    ASSERT_TRUE(world.step(policy));
    EXPECT_THAT(world.running(), ElementsAre(0, 1));
}

TEST(Decide, PolicyThatThrowsIsAnErrorAndChangesNothing) {
    tests::World world(1);
    world.add(8);
    FixedPolicy policy;
    policy.throws = true;
    const auto actions = world.step(policy);
    ASSERT_FALSE(actions);
    EXPECT_THAT(actions.error().message, HasSubstr("fixed: no idea"));
    EXPECT_EQ(world.pool->free_gpus(0), 8);
}

class ThrowsANumber final : public Policy {
public:
    std::string_view name() const override { return "throws a number"; }
    bool preempts() const override { return true; }
    Result<Decision> decide(const Snapshot&) override { throw 7; }
};

TEST(Decide, AnyThrownTypeIsAnError) {
    tests::World world(1);
    world.add(8);
    ThrowsANumber policy;
    const auto actions = world.step(policy);
    ASSERT_FALSE(actions);
    EXPECT_THAT(actions.error().message, HasSubstr("throws a number"));
}

TEST(Decide, InvalidWantIsRefused) {
    tests::World world(1);
    world.add(8);
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 4}};
    EXPECT_THAT(world.step(policy).error().message, HasSubstr("\"job0\" with 4 GPUs"));
    policy.decision.wants = {{.job = 0, .gpus = 8}, {.job = 0, .gpus = 8}};
    EXPECT_THAT(world.step(policy).error().message, HasSubstr("twice"));
    policy.decision.wants = {{.job = 7, .gpus = 8}};
    EXPECT_THAT(world.step(policy).error().message, HasSubstr("unknown job"));
}

TEST(Decide, JobLargerThanClusterNeverFits) {
    tests::World world(1);
    world.add(9);
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 9}};
    ASSERT_TRUE(world.step(policy));
    EXPECT_EQ(world.waits[0], WaitsFor::never_fits);
}

TEST(Decide, HigherPriorityGoesFirstUnderAnyPolicy) {
    tests::World world(1);
    world.add(8);
    world.add(8).priority = 1;
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 8}, {.job = 1, .gpus = 8}};
    ASSERT_TRUE(world.step(policy));
    EXPECT_THAT(world.running(), ElementsAre(1));
}

TEST(Decide, PromisedJobGoesBeforeAnyPriority) {
    tests::World world(1);
    world.add(8);
    world.add(8).priority = 1;
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 8, .promised = true}, {.job = 1, .gpus = 8}};
    ASSERT_TRUE(world.step(policy));
    EXPECT_THAT(world.running(), ElementsAre(0));
}

TEST(Decide, PackedJobFollowsItsHostWhateverItsPriority) {
    tests::World world(1);
    world.add(8);
    world.add(8).priority = 5;
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 8}, {.job = 1, .gpus = 8, .packed_with = 0}};
    ASSERT_TRUE(world.step(policy));
    EXPECT_THAT(world.running(), ElementsAre(0, 1));
}

TEST(Decide, TenantAtQuotaWaitsAndBlocksNoOtherTenant) {
    tests::World world(1);
    world.tenants = {{.name = "one", .gpu_quota = 4}, {.name = "two"}};
    world.add(3);
    world.add(2);
    world.add(4).tenant = 1;
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 3}, {.job = 1, .gpus = 2}, {.job = 2, .gpus = 4}};
    policy.decision.skips_blocked = false;
    ASSERT_TRUE(world.step(policy));
    EXPECT_THAT(world.running(), ElementsAre(0, 2));
    EXPECT_EQ(world.waits[1], WaitsFor::quota);
}

TEST(Decide, QuotaCoversAllChildTenants) {
    tests::World world(1);
    world.tenants = {{.name = "all", .gpu_quota = 4}, {.name = "one", .parent = 0}, {.name = "two", .parent = 0}};
    world.add(3).tenant = 1;
    world.add(2).tenant = 2;
    world.add(1).tenant = 2;
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 3}, {.job = 1, .gpus = 2}, {.job = 2, .gpus = 1}};
    ASSERT_TRUE(world.step(policy));
    EXPECT_THAT(world.running(), ElementsAre(0, 2));
    EXPECT_EQ(world.waits[1], WaitsFor::quota);
}

TEST(Decide, ElasticJobTakesWhatQuotaLeaves) {
    tests::World world(1);
    world.tenants[0].gpu_quota = 3;
    world.add(6).gpus_min = 2;
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 6}};
    ASSERT_TRUE(world.step(policy));
    EXPECT_EQ(world.states[0].gpus, 3);
    const auto again = world.step(policy);
    ASSERT_TRUE(again);
    EXPECT_TRUE(again->stops.empty() && again->starts.empty());
}

TEST(Decide, LoweredQuotaStopsPreemptibleJob) {
    tests::World world(1);
    world.add(4);
    world.add(4);
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 4}, {.job = 1, .gpus = 4}};
    ASSERT_TRUE(world.step(policy));
    world.tenants[0].gpu_quota = 4;
    ASSERT_TRUE(world.step(policy));
    EXPECT_THAT(world.running(), ElementsAre(0));
    EXPECT_EQ(world.waits[1], WaitsFor::quota);
}

TEST(Decide, GuestIsStoppedOnceUnwanted) {
    tests::World world(1);
    world.add(8);
    world.add(8);
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 8}, {.job = 1, .gpus = 8, .packed_with = 0}};
    ASSERT_TRUE(world.step(policy));
    policy.decision.wants = {{.job = 0, .gpus = 8}, {.job = 1, .gpus = 8}};
    const auto actions = world.step(policy);
    ASSERT_TRUE(actions);
    EXPECT_THAT(actions->stops, ElementsAre(1));
    EXPECT_THAT(world.running(), ElementsAre(0));
    EXPECT_EQ(world.waits[1], WaitsFor::gpus);
}

TEST(Decide, JobMovesOnlyOntoFewerNodes) {
    tests::World world(2);
    world.add(6);
    world.add(6);
    world.add(4);  // 2 on each node
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 6}, {.job = 1, .gpus = 6}, {.job = 2, .gpus = 4}};
    ASSERT_TRUE(world.step(policy));
    ASSERT_EQ(world.states[2].placement.size(), 2);
    policy.decision.wants[2].moves = true;
    const Placement before = world.states[2].placement;
    auto actions = world.step(policy);
    ASSERT_TRUE(actions);
    EXPECT_TRUE(actions->stops.empty() && actions->starts.empty());
    EXPECT_EQ(world.states[2].placement, before);

    world.end(0);
    policy.decision.wants = {{.job = 0, .gpus = 6}, {.job = 1, .gpus = 4, .moves = true}};
    actions = world.step(policy);
    ASSERT_TRUE(actions);
    EXPECT_THAT(actions->stops, ElementsAre(1));
    EXPECT_EQ(world.states[2].placement.size(), 1);
    EXPECT_EQ(world.pool->free_gpus(0), 6);
}

TEST(Decide, RefusedJobWaitsForDeadline) {
    tests::World world(1);
    world.add(8);
    FixedPolicy policy;
    policy.decision.refused = {{.job = 0, .end_s = 100}};
    const auto actions = world.step(policy);
    ASSERT_TRUE(actions);
    EXPECT_EQ(world.waits[0], WaitsFor::deadline);
    EXPECT_EQ(actions->refused.size(), 1);
}

TEST(AddRun, RecentRunTimeDecays) {
    tests::World world(1, {"a", "b"});
    world.add(2);
    JobState& job = world.states[0];
    job.running = true;
    job.gpus = 2;
    job.gpu_type = 1;
    for (int step = 0; step < 100; ++step) add_run(job, step * kHalfLifeS, (step + 1) * kHalfLifeS);
    EXPECT_DOUBLE_EQ(job.attained_gpu_s, 200 * kHalfLifeS);
    EXPECT_DOUBLE_EQ(job.ran_s_by_type[1], 100 * kHalfLifeS);
    const double faded_s = full_recent_run_s(100 * kHalfLifeS);
    EXPECT_NEAR(faded_s, kHalfLifeS / std::log(2), 1e-9 * faded_s);
    EXPECT_NEAR(recent_run_s(job, 1, 100 * kHalfLifeS), faded_s, 1e-9 * faded_s);
    EXPECT_NEAR(recent_run_s(job, 1, 101.5 * kHalfLifeS), faded_s * std::exp2(-1.5), 1e-9 * faded_s);
    EXPECT_EQ(recent_run_s(job, 0, 100 * kHalfLifeS), 0);
}

TEST(Decide, SharedGpusCountAgainstQuota) {
    tests::World world(2);
    world.tenants = {{.name = "one"}, {.name = "two", .gpu_quota = 4}};
    world.add(8);
    for (const std::uint32_t gpus : {8U, 4U, 2U}) world.add(gpus).tenant = 1;
    world.add(4);
    FixedPolicy policy;
    policy.decision.wants = {{.job = 0, .gpus = 8},
                             {.job = 1, .gpus = 8, .packed_with = 0},
                             {.job = 4, .gpus = 4},
                             {.job = 2, .gpus = 4, .packed_with = 4},
                             {.job = 3, .gpus = 2}};
    ASSERT_TRUE(world.step(policy));
    EXPECT_THAT(world.running(), ElementsAre(0, 2, 4));
    EXPECT_EQ(world.waits[1], WaitsFor::quota);
    EXPECT_EQ(world.waits[3], WaitsFor::quota) << "the job that shares GPUs uses the whole quota";
    policy.decision.wants.erase(policy.decision.wants.begin() + 1);
    ASSERT_TRUE(world.step(policy));
    EXPECT_THAT(world.running(), ElementsAre(0, 2, 4)) << "a job that shares GPUs already counts too";
}

}  // namespace
}  // namespace larder::scheduler
