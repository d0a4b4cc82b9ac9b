// Jobs without a claim, under every policy: they use idle GPUs and make room as soon as a claim needs it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler::tests {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class Opportunistic : public testing::TestWithParam<std::string_view> {
protected:
    void SetUp() override {
        auto made = make_policy(GetParam(), {});
        ASSERT_TRUE(made);
        policy_ = std::move(*made);
    }
    Actions step() {
        const auto actions = world_.step(*policy_);
        EXPECT_TRUE(actions) << actions.error().message;
        return actions ? *actions : Actions{};
    }
    std::uint32_t add(std::uint32_t gpus, bool opportunistic, double seconds = 1e5) {
        world_.add(gpus, tests::work_bytes(gpus, seconds)).opportunistic = opportunistic;
        return static_cast<std::uint32_t>(world_.specs.size() - 1);
    }

    World world_{2};
    std::unique_ptr<Policy> policy_;
};

TEST_P(Opportunistic, MakesRoomForClaimAndRunsAgainAfterwards) {
    add(8, true);
    add(8, true);
    step();
    ASSERT_THAT(world_.running(), ElementsAre(0, 1));
    EXPECT_TRUE(world_.states[0].opportunistic);
    world_.pass(10);
    const std::uint32_t first = add(8, false);
    EXPECT_THAT(step().stops, SizeIs(1)) << "only one of the two jobs stops";
    EXPECT_TRUE(world_.states[first].running);
    EXPECT_FALSE(world_.states[first].opportunistic);
    world_.pass(10);
    const std::uint32_t second = add(8, false);
    step();
    EXPECT_THAT(world_.running(), ElementsAre(first, second));
    world_.pass(10);
    world_.end(first);
    world_.end(second);
    step();
    EXPECT_THAT(world_.running(), ElementsAre(0, 1));
}

TEST_P(Opportunistic, MakesRoomForGangAcrossNodes) {
    for (int j = 0; j < 16; ++j) add(1, true);
    step();
    ASSERT_THAT(world_.running(), SizeIs(16));
    world_.pass(10);
    const std::uint32_t gang = add(12, false);
    EXPECT_THAT(step().stops, SizeIs(12)) << "jobs whose GPUs the gang does not need continue";
    EXPECT_TRUE(world_.states[gang].running);
    EXPECT_THAT(world_.running(), SizeIs(5));
}

TEST_P(Opportunistic, StopsNoJobWithClaim) {
    const std::uint32_t claims = add(16, false, 1e6);
    step();
    const std::uint32_t quick = add(16, true, 1);
    for (int round = 0; round < 30; ++round) {
        world_.pass(1000);
        EXPECT_THAT(step().stops, IsEmpty());
    }
    EXPECT_TRUE(world_.states[claims].running);
    EXPECT_FALSE(world_.states[quick].running);
    EXPECT_EQ(world_.waits[1], WaitsFor::gpus);
}

TEST_P(Opportunistic, DoesNotChangeDecisionsAboutClaims) {
    World alone(2);
    TestRandom random(4);
    for (int j = 0; j < 12; ++j) {
        const std::uint32_t gpus = 1U << random.below(4);
        const double seconds = 100 + random.below(5000);
        alone.add(gpus, tests::work_bytes(gpus, seconds));
        add(gpus, false, seconds);
        add(1U << random.below(4), true, seconds);
    }
    auto other = std::move(*make_policy(GetParam(), {}));
    for (int round = 0; round < 50; ++round) {
        ASSERT_TRUE(alone.step(*other));
        step();
        std::vector<std::uint32_t> claiming;
        for (const std::uint32_t j : world_.running()) {
            if (!world_.specs[j].opportunistic) claiming.push_back(j / 2);
        }
        ASSERT_EQ(claiming, alone.running()) << "round " << round;
        alone.pass(360);
        world_.pass(360);
        alone.end_finished();
        world_.end_finished();
    }
}

INSTANTIATE_TEST_SUITE_P(Policies, Opportunistic, testing::ValuesIn(policy_names()), [](const auto& tested) {
    std::string name(tested.param);
    std::erase(name, '-');
    return name;
});

}  // namespace
}  // namespace larder::scheduler::tests
