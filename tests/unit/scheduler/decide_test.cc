#include "scheduler/decide.h"

#include <gmock/gmock.h>

#include <stdexcept>

#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Wants what it is told.
class Told final : public Policy {
public:
    std::string_view name() const override { return "told"; }
    bool preempts() const override { return true; }
    Result<Decision> decide(const Snapshot&) override {
        if (throws) throw std::runtime_error("no idea");
        return decision;
    }
    Decision decision;
    bool throws = false;
};

TEST(Decide, StopsWhatIsNotWantedWhenOthersNeedItsGpus) {
    tests::World world(1);
    world.add(8);
    world.add(8);
    Told policy;
    policy.decision.wants = {{.job = 0, .gpus = 8}};
    ASSERT_TRUE(world.step(policy));
    policy.decision.wants = {{.job = 1, .gpus = 8}};
    const auto actions = world.step(policy);
    ASSERT_TRUE(actions);
    EXPECT_THAT(actions->stops, ElementsAre(0));
    EXPECT_THAT(world.running(), ElementsAre(1));
}

TEST(Decide, KeepsWhatIsNotWantedWhenNobodyNeedsItsGpus) {
    tests::World world(2);
    world.add(8);
    world.add(8);
    Told policy;
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

TEST(Decide, NeverStopsWhatIsNotPreemptible) {
    tests::World world(1);
    world.add(8).preemptible = false;
    world.add(8);
    Told policy;
    policy.decision.wants = {{.job = 0, .gpus = 8}};
    ASSERT_TRUE(world.step(policy));
    policy.decision.wants = {{.job = 1, .gpus = 8}};
    ASSERT_TRUE(world.step(policy));
    EXPECT_THAT(world.running(), ElementsAre(0));
}

TEST(Decide, ResizesAnElasticJobInPlaceOfItself) {
    tests::World world(1);
    JobSpec& elastic = world.add(4);
    elastic.gpus_min = 2;
    elastic.gpus_max = 8;
    Told policy;
    policy.decision.wants = {{.job = 0, .gpus = 4}};
    ASSERT_TRUE(world.step(policy));
    policy.decision.wants = {{.job = 0, .gpus = 8}};
    const auto actions = world.step(policy);
    ASSERT_TRUE(actions);
    EXPECT_THAT(actions->stops, ElementsAre(0));
    ASSERT_EQ(actions->starts.size(), 1);
    EXPECT_EQ(gpu_count(actions->starts[0].placement), 8);
}

TEST(Decide, PacksAJobOntoAnothersGpus) {
    tests::World world(1);
    world.add(8);
    world.add(8);
    Told policy;
    policy.decision.wants = {{.job = 0, .gpus = 8}, {.job = 1, .gpus = 8, .packed_with = 0}};
    ASSERT_TRUE(world.step(policy));
    EXPECT_THAT(world.running(), ElementsAre(0, 1));
    EXPECT_EQ(world.states[0].placement, world.states[1].placement);
    const auto again = world.step(policy);
    ASSERT_TRUE(again);
    EXPECT_TRUE(again->stops.empty() && again->starts.empty());
}

TEST(Decide, APolicyThatThrowsIsAnErrorAndChangesNothing) {
    tests::World world(1);
    world.add(8);
    Told policy;
    policy.throws = true;
    const auto actions = world.step(policy);
    ASSERT_FALSE(actions);
    EXPECT_THAT(actions.error().message, HasSubstr("told: no idea"));
    EXPECT_EQ(world.pool->free_gpus(0), 8);
}

TEST(Decide, RefusesWhatNoPolicyMayWant) {
    tests::World world(1);
    world.add(8);
    Told policy;
    policy.decision.wants = {{.job = 0, .gpus = 4}};
    EXPECT_THAT(world.step(policy).error().message, HasSubstr("\"job0\" with 4 GPUs"));
    policy.decision.wants = {{.job = 0, .gpus = 8}, {.job = 0, .gpus = 8}};
    EXPECT_THAT(world.step(policy).error().message, HasSubstr("twice"));
    policy.decision.wants = {{.job = 7, .gpus = 8}};
    EXPECT_THAT(world.step(policy).error().message, HasSubstr("not there"));
}

TEST(Decide, SaysOfAJobLargerThanTheClusterThatItNeverFits) {
    tests::World world(1);
    world.add(9);
    Told policy;
    policy.decision.wants = {{.job = 0, .gpus = 9}};
    ASSERT_TRUE(world.step(policy));
    EXPECT_EQ(world.waits[0], WaitsFor::never_fits);
}

}  // namespace
}  // namespace larder::scheduler
