#include <gmock/gmock.h>

#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler {
namespace {

using testing::ElementsAre;

constexpr double kLeaseS = 600;

std::unique_ptr<Policy> astraea(double starve_s = 1e9, std::uint32_t window_intervals = 24) {
    return std::move(*make_policy(
        "astraea",
        {.window_intervals = window_intervals, .interval_s = 3600, .lease_s = kLeaseS, .starve_s = starve_s}));
}

constexpr TimeWindow kWindow{.interval_s = 3600, .intervals = 24};

// Decides at the end of each lease and adds up the tenants' GPU time.
void run_leases(tests::World& world, Policy& policy, int leases) {
    for (int lease = 0; lease < leases; ++lease) {
        ASSERT_TRUE(world.step(policy));
        for (const std::uint32_t j : world.running()) {
            GpuTime& gpu_time = world.tenants[world.specs[j].tenant].gpu_time;
            gpu_time.add(world.now_s, world.now_s + kLeaseS, world.states[j].gpus, kWindow);
        }
        world.pass(kLeaseS);
    }
}

TEST(Astraea, TenantsGetGpuTimeByWeightWhateverTheirJobCount) {
    tests::World world(1);
    world.tenants = {{.name = "many", .weight = 1}, {.name = "few", .weight = 3}};
    for (int j = 0; j < 12; ++j) world.add(2, kNever);
    for (int j = 0; j < 4; ++j) world.add(2, kNever).tenant = 1;
    const auto policy = astraea();
    run_leases(world, *policy, 120);
    std::vector<double> gpu_s(2);
    for (std::size_t j = 0; j < world.states.size(); ++j) {
        gpu_s[world.specs[j].tenant] += world.states[j].attained_gpu_s;
    }
    EXPECT_NEAR(gpu_s[0] / (gpu_s[0] + gpu_s[1]), 0.25, 0.02);
    // Each job of a tenant gets as much as the tenant's other jobs.
    for (std::size_t j = 0; j < 12; ++j) {
        EXPECT_NEAR(world.states[j].attained_gpu_s, gpu_s[0] / 12, 2 * kLeaseS * 2);
    }
}

TEST(Astraea, GpuTimeOfTenantBeforeWindowIsForgotten) {
    for (const std::uint32_t window : {1U, 24U}) {
        tests::World world(1);
        world.tenants = {{.name = "one", .gpu_time = {.gpu_s_by_interval = {1e6, 0}}},
                         {.name = "two", .gpu_time = {.gpu_s_by_interval = {0, 100}}}};
        world.add(8, kNever);
        world.add(8, kNever).tenant = 1;
        const auto policy = astraea(1e9, window);
        ASSERT_TRUE(world.step(*policy));
        EXPECT_THAT(world.running(), ElementsAre(window == 1 ? 0 : 1));
    }
}

TEST(Astraea, GpuTimeOfJobBeforeWindowIsForgotten) {
    for (const std::uint32_t window : {1U, 24U}) {
        tests::World world(1);
        world.add(8, kNever);
        world.add(8, kNever);
        world.states[0].gpu_time = {.gpu_s_by_interval = {1e6, 0}};  // adds up to attained_gpu_s
        world.states[0].attained_gpu_s = 1e6;
        world.states[1].gpu_time = {.gpu_s_by_interval = {0, 100}};
        world.states[1].attained_gpu_s = 100;
        const auto policy = astraea(1e9, window);
        ASSERT_TRUE(world.step(*policy));
        EXPECT_THAT(world.running(), ElementsAre(window == 1 ? 0 : 1));
    }
}

TEST(Astraea, JobKeepsItsGpusToEndOfLease) {
    tests::World world(1);
    world.tenants = {{.name = "one", .gpu_time = {.gpu_s_by_interval = {1e6}}}, {.name = "two"}};
    world.add(8, kNever);
    const auto policy = astraea();
    ASSERT_TRUE(world.step(*policy));
    world.pass(kLeaseS / 2);
    world.add(8, kNever).tenant = 1;
    const auto actions = world.step(*policy);
    ASSERT_TRUE(actions);
    EXPECT_THAT(world.running(), ElementsAre(0));
    EXPECT_EQ(actions->next_s, kLeaseS);
    world.pass(kLeaseS / 2);
    ASSERT_TRUE(world.step(*policy));
    EXPECT_THAT(world.running(), ElementsAre(1));
}

TEST(Astraea, StarvingJobGoesFirst) {
    tests::World world(1);
    world.tenants = {{.name = "one", .gpu_time = {.gpu_s_by_interval = {1e6}}}, {.name = "two"}};
    world.add(8, kNever);  // of the tenant with much GPU time
    world.pass(2000);
    for (int j = 0; j < 3; ++j) world.add(4, kNever).tenant = 1;
    const auto patient = astraea(3000);
    ASSERT_TRUE(world.step(*patient));
    EXPECT_THAT(world.running(), ElementsAre(1, 2));
    world.pass(1200);
    ASSERT_TRUE(world.step(*patient));
    EXPECT_THAT(world.running(), ElementsAre(0));
}

}  // namespace
}  // namespace larder::scheduler
