#include <gmock/gmock.h>

#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler {
namespace {

using testing::ElementsAre;

constexpr double kTurnS = 60;

std::unique_ptr<Policy> gandiva() {
    return std::move(*make_policy("gandiva", {.round_s = kTurnS}));
}

void pass_turns(tests::World& world, Policy& policy, int rounds) {
    for (int round = 0; round < rounds; ++round) {
        const auto actions = world.step(policy);
        ASSERT_TRUE(actions) << actions.error().message;
        world.pass(kTurnS);
    }
}

TEST(Gandiva, JobsAndLargeGangsTakeTurns) {
    tests::World world(1);
    world.add(8, kNever);
    for (int j = 0; j < 16; ++j) world.add(1, kNever);
    const auto policy = gandiva();
    pass_turns(world, *policy, 90);
    for (const JobState& job : world.states) EXPECT_NEAR(job.ran_s / (90 * kTurnS), 1 / 3.0, 0.05);
}

TEST(Gandiva, TurnLastsToEndOfRound) {
    tests::World world(1);
    world.add(8, kNever);
    const auto policy = gandiva();
    auto actions = world.step(*policy);
    ASSERT_TRUE(actions);
    EXPECT_EQ(actions->next_s, kNever);
    world.pass(20);
    world.add(8, kNever);
    actions = world.step(*policy);
    ASSERT_TRUE(actions);
    EXPECT_THAT(world.running(), ElementsAre(0));
    EXPECT_EQ(actions->next_s, kTurnS);
    world.pass(40);
    ASSERT_TRUE(world.step(*policy));
    EXPECT_THAT(world.running(), ElementsAre(1));
}

void let_share(JobSpec& job, double packed_rate, double gpu_memory_part = 0.5) {
    job.packed_rate = packed_rate;
    job.gpu_memory_part = gpu_memory_part;
}

TEST(Gandiva, PacksTwoJobsThatDoMoreTogetherThanInTurns) {
    for (const double packed_rate : {0.7, 0.5, 0.0}) {
        tests::World world(1);
        let_share(world.add(8, kNever), packed_rate);
        let_share(world.add(8, kNever), 0.7);
        const auto policy = gandiva();
        ASSERT_TRUE(world.step(*policy));
        EXPECT_EQ(world.running().size(), packed_rate > 0 ? 2 : 1) << packed_rate;
    }
    tests::World world(1);
    let_share(world.add(8, kNever), 0.5);
    let_share(world.add(8, kNever), 0.5);
    const auto policy = gandiva();
    ASSERT_TRUE(world.step(*policy));
    EXPECT_EQ(world.running().size(), 1);
}

TEST(Gandiva, PacksOnlyJobsWhoseMemoryFitsTogether) {
    const struct {
        double host;
        double guest;
        std::size_t running;
    } cases[] = {{0.5, 0.5, 2}, {0.25, 0.75, 2}, {0.5, 0.625, 1}, {1, 0.25, 1}, {0, 0.25, 1}, {0.25, 0, 1}};
    for (const auto& memory : cases) {
        tests::World world(1);
        let_share(world.add(8, kNever), 0.7, memory.host);
        let_share(world.add(8, kNever), 0.7, memory.guest);
        const auto policy = gandiva();
        ASSERT_TRUE(world.step(*policy));
        EXPECT_EQ(world.running().size(), memory.running) << memory.host << " and " << memory.guest;
    }
}

TEST(Gandiva, GuestJoinsTheHostWithRoomThatLosesLeast) {
    tests::World world(4);
    const double host_memory[] = {0.75, 0.5, 0.5, 0.25};
    const double host_rate[] = {0.9, 0.7, 0.8, 0.6};
    for (int h = 0; h < 4; ++h) let_share(world.add(8, kNever), host_rate[h], host_memory[h]);
    let_share(world.add(8, kNever), 0.7, 0.5);
    const auto policy = gandiva();
    ASSERT_TRUE(world.step(*policy));
    EXPECT_EQ(world.states[4].packed_with, &world.states[2]);
}

// A job that storage binds has spare GPU time, so sharing GPUs costs it less.
TEST(Gandiva, PacksJobsThatStorageBinds) {
    for (const bool aware : {true, false}) {
        tests::World world(1);
        world.storage = {.cache_bytes = 0, .remote_bytes_per_second = 4e8};
        world.datasets = {{.name = "remote", .size_bytes = 1e12, .cached_bytes = 0}};
        for (int j = 0; j < 2; ++j) {
            JobSpec& spec = world.add(8, kNever);
            spec.dataset = 0;  // the remote gives each job half of its f*
            let_share(spec, 0.45);
        }
        world.storage_aware = aware;
        const auto policy = gandiva();
        ASSERT_TRUE(world.step(*policy));
        EXPECT_EQ(world.running().size(), aware ? 2 : 1);
    }
}

TEST(Gandiva, UnpacksJobsAsSoonAsThereIsRoom) {
    tests::World world(1);
    for (int j = 0; j < 3; ++j) let_share(world.add(4, kNever), 0.8);
    const auto policy = gandiva();
    pass_turns(world, *policy, 2);
    ASSERT_THAT(world.running(), ElementsAre(0, 1, 2));
    const auto guest =
        std::ranges::find_if(world.states, [](const JobState& job) { return job.packed_with != nullptr; });
    ASSERT_NE(guest, world.states.end());
    const auto alone = std::ranges::find_if(
        world.states, [&](const JobState& job) { return &job != guest->packed_with && &job != &*guest; });
    world.end(static_cast<std::uint32_t>(alone - world.states.begin()));
    pass_turns(world, *policy, 2);
    EXPECT_TRUE(guest->running);
    EXPECT_EQ(guest->packed_with, nullptr);
    EXPECT_EQ(world.pool->free_gpus(0), 0);
}

TEST(Gandiva, UnpacksJobsThatRunTooSlowlyTogether) {
    tests::World world(1);
    for (int j = 0; j < 2; ++j) let_share(world.add(8, kNever), 0.8);
    const auto policy = gandiva();
    pass_turns(world, *policy, 1);
    ASSERT_THAT(world.running(), ElementsAre(0, 1));
    for (JobState& job : world.states) job.rate_bytes_per_second = 8e8 * 0.6;
    pass_turns(world, *policy, 1);
    ASSERT_THAT(world.running(), ElementsAre(0, 1));  // together 1.2 times one job alone
    for (JobState& job : world.states) job.rate_bytes_per_second = 8e8 * 0.4;
    pass_turns(world, *policy, 1);
    EXPECT_EQ(world.running().size(), 1);
}

TEST(Gandiva, ElasticJobGrowsIntoSpareGpusAndGivesThemBack) {
    tests::World world(1);
    JobSpec& elastic = world.add(2, tests::work_bytes(2, 100000));
    elastic.gpus_max = 8;
    const auto policy = gandiva();
    pass_turns(world, *policy, 1);
    EXPECT_EQ(world.states[0].gpus, 8);
    world.add(4, kNever);
    pass_turns(world, *policy, 2);
    EXPECT_THAT(world.running(), ElementsAre(0, 1));
    EXPECT_EQ(world.states[0].gpus, 4);
}

TEST(Gandiva, JobThatGainsMostGrows) {
    tests::World world(1);
    for (int j = 0; j < 2; ++j) {
        JobSpec& spec = world.add(2, kNever);
        spec.gpus_max = 6;
        spec.scaling = j == 0 ? std::vector<double>{1, 1.1, 1.2, 1.25, 1.3} : std::vector<double>{1, 1.5, 2, 2.4, 2.8};
    }
    const auto policy = gandiva();
    pass_turns(world, *policy, 1);
    EXPECT_EQ(world.states[0].gpus, 2);
    EXPECT_EQ(world.states[1].gpus, 6);
}

TEST(Gandiva, JobDoesNotGrowForLessThanRestartCosts) {
    for (const double restart_s : {10.0, 1000.0}) {
        tests::World world(1);
        JobSpec& elastic = world.add(4, tests::work_bytes(4, 300));
        elastic.gpus_max = 8;
        elastic.restart_s = restart_s;
        world.add(4, kNever);
        const auto policy = gandiva();
        pass_turns(world, *policy, 1);
        ASSERT_EQ(world.states[0].gpus, 4);
        world.end(1);
        pass_turns(world, *policy, 2);
        EXPECT_EQ(world.states[0].gpus, restart_s < 100 ? 8 : 4);
    }
}

TEST(Gandiva, SpreadJobMovesTogetherWhenThatPays) {
    for (const double restart_s : {10.0, 1e7}) {
        tests::World world(2);
        for (int j = 0; j < 2; ++j) world.add(6, kNever);
        JobSpec& spread = world.add(4, tests::work_bytes(4, 10000));
        spread.rate_by_nodes = {1, 0.5};
        spread.restart_s = restart_s;
        const auto policy = gandiva();
        pass_turns(world, *policy, 1);
        ASSERT_EQ(world.states[2].placement.size(), 2);
        world.end(0);
        pass_turns(world, *policy, 2);
        EXPECT_EQ(world.states[2].placement.size(), restart_s < 100 ? 1 : 2);
    }
}

}  // namespace
}  // namespace larder::scheduler
