#include "scheduler/policies/fair.h"

#include <gmock/gmock.h>

#include "scheduler/policies/tenant_tree.h"
#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

constexpr double kRoundS = 360;

// Decides at the end of each round. Returns the fraction of the time that each job ran on each type.
std::vector<std::vector<double>> run_rounds(tests::World& world, Policy& policy, int rounds) {
    for (int round = 0; round < rounds; ++round) {
        const auto actions = world.step(policy);
        EXPECT_TRUE(actions) << actions.error().message;
        world.pass(kRoundS);
    }
    std::vector<std::vector<double>> parts;
    for (const JobState& job : world.states) {
        std::vector<double>& job_parts = parts.emplace_back();
        for (const double ran_s : job.ran_s_by_type) job_parts.push_back(ran_s / (rounds * kRoundS));
    }
    return parts;
}

std::unique_ptr<Policy> policy(std::string_view name) {
    return std::move(*make_policy(name, {.round_s = kRoundS}));
}

// The share that the policy gives each job, by type.
std::vector<std::vector<double>> shares(const tests::World& world, Policy& policy) {
    const Snapshot taken = world.snapshot();
    const auto parts = dynamic_cast<Fair&>(policy).parts(taken);
    EXPECT_TRUE(parts) << parts.error().message;
    std::vector<std::vector<double>> by_job;
    for (auto at = parts->begin(); at != parts->end(); at += static_cast<std::ptrdiff_t>(taken.gpu_types.size())) {
        by_job.emplace_back(at, at + static_cast<std::ptrdiff_t>(taken.gpu_types.size()));
    }
    return by_job;
}

double sum_of(const std::vector<double>& parts) {
    double sum = 0;
    for (const double part : parts) sum += part;
    return sum;
}

TEST(MaxMin, EqualJobsTakeTurns) {
    tests::World world(1);
    for (int j = 0; j < 3; ++j) world.add(4, kNever);
    const auto fair = policy("max-min");
    const auto parts = run_rounds(world, *fair, 60);
    for (const auto& part : parts) EXPECT_NEAR(sum_of(part), 2 / 3.0, 0.05);
}

TEST(MaxMin, SharesFollowWeights) {
    tests::World world(1);
    world.add(8, kNever).weight = 3;
    world.add(8, kNever);
    const auto fair = policy("max-min");
    const auto parts = run_rounds(world, *fair, 80);
    EXPECT_NEAR(sum_of(parts[0]), 0.75, 0.05);
}

TEST(MaxMin, LargeGangRunsProportionallyLess) {
    tests::World world(1);
    world.add(8, kNever);
    for (int j = 0; j < 8; ++j) world.add(1, kNever);
    const auto fair = policy("max-min");
    const auto parts = run_rounds(world, *fair, 80);
    // All jobs get equal GPU time: the gang of 8 GPUs runs for a part x of the time, and each job of 1 GPU for 8 x.
    // 8 x + 8 * 8 x = 8, so x = 1/9 and 8 x = 8/9.
    EXPECT_NEAR(sum_of(parts[0]), 8 / 64.0, 0.13);
    for (std::size_t j = 1; j < parts.size(); ++j) EXPECT_GT(sum_of(parts[j]), 0.7);
}

TEST(MaxMin, JobKeepsItsGpusToEndOfRound) {
    tests::World world(1);
    world.add(8, kNever);
    const auto fair = policy("max-min");
    ASSERT_TRUE(world.step(*fair));
    world.pass(kRoundS / 2);
    world.add(8, kNever).priority = 1;
    auto actions = world.step(*fair);
    ASSERT_TRUE(actions);
    EXPECT_THAT(world.running(), ElementsAre(0));
    EXPECT_EQ(actions->next_s, kRoundS);
    world.pass(kRoundS / 2);
    actions = world.step(*fair);
    ASSERT_TRUE(actions);
    EXPECT_THAT(world.running(), ElementsAre(1));
}

TEST(MaxMin, NoDecisionIsDueWhileAllJobsRun) {
    tests::World world(1);
    world.add(4, kNever);
    world.add(4, kNever);
    const auto fair = policy("max-min");
    const auto actions = world.step(*fair);
    ASSERT_TRUE(actions);
    EXPECT_THAT(world.running(), ElementsAre(0, 1));
    EXPECT_EQ(actions->next_s, kNever);
}

// The second type is faster for some jobs only. A policy that knows the types raises the lowest share.
TEST(MaxMin, KnowingTypesBeatsBaseline) {
    const auto lowest_level = [](std::string_view name) {
        tests::World world(1, {"slow", "fast"});
        for (int j = 0; j < 8; ++j) {
            world.add(4, kNever).ideal_bytes_per_second = {1e8, j < 4 ? 4e8 : 1.2e8};
        }
        const auto fair = policy(name);
        const auto parts = run_rounds(world, *fair, 200);
        double lowest = kNever;
        for (std::size_t j = 0; j < parts.size(); ++j) {
            const double fast = j < 4 ? 4 : 1.2;
            lowest = std::min(lowest, (parts[j][0] + fast * parts[j][1]) / (1 + fast) * 2);
        }
        return lowest;
    };
    const double aware_level = lowest_level("max-min");
    const double agnostic_level = lowest_level("max-min-agnostic");
    EXPECT_THAT(aware_level, DoubleNear(2.2 / 3.7, 0.04));  // the linear program's level: see shares_test.cc
    EXPECT_THAT(agnostic_level, DoubleNear(0.5, 0.04));
}

// A job that the remote binds runs no faster on the faster type, so the other job gets that type.
TEST(MaxMin, RemoteBoundJobLeavesFastTypeToOthers) {
    for (const bool aware : {true, false}) {
        tests::World world(1, {"slow", "fast"});
        world.storage = {.cache_bytes = 0, .remote_bytes_per_second = 4e8};
        world.datasets = {{.name = "remote", .size_bytes = 1e12, .cached_bytes = 0}};
        world.add(8, kNever).ideal_bytes_per_second = {2e8, 8e8};
        world.specs[0].dataset = 0;  // The remote's equal share holds this job to 2e8 on either GPU type.
        world.add(8, kNever).ideal_bytes_per_second = {2e8, 6e8};
        world.storage_aware = aware;
        const auto fair = policy("max-min");
        const auto parts = run_rounds(world, *fair, 100);
        if (aware) {
            EXPECT_THAT(parts[0][1], DoubleNear(0, 0.05));
            EXPECT_THAT(parts[1][1], DoubleNear(1, 0.05));
        } else {
            EXPECT_GT(parts[0][1], 0.4);
        }
    }
}

TEST(Makespan, AllJobsEndTogether) {
    tests::World world(1);
    world.add(8, tests::work_bytes(8, 3000));
    world.add(8, tests::work_bytes(8, 9000));
    world.add(8, tests::work_bytes(8, 6000));
    const auto makespan = policy("makespan");
    while (!world.jobs.empty()) {
        const auto actions = world.step(*makespan);
        ASSERT_TRUE(actions);
        for (const JobState& job : world.states) {
            if (world.now_s >= 15000) continue;
            EXPECT_LT(job.remaining_bytes,
                      job.spec->total_bytes * (1 - world.now_s / 18000) + tests::work_bytes(8, 2000));
        }
        world.pass(std::min(actions->next_s, world.next_end_s()) - world.now_s);
        world.end_finished();
    }
    EXPECT_NEAR(world.now_s, 18000, 1);
}

// The longest job alone decides when all jobs have ended, so it gets the type that it is fastest on.
TEST(Makespan, LongestJobGetsItsFastestType) {
    tests::World world(1, {"slow", "fast"});
    world.add(8, 1e8 * 10000).ideal_bytes_per_second = {1e8, 2e8};
    world.add(8, 1e8 * 1000).ideal_bytes_per_second = {1e8, 2e8};
    const auto makespan = policy("makespan");
    const auto parts = run_rounds(world, *makespan, 5);
    EXPECT_GT(parts[0][1], 0.7);
}

// One job has waited for 20,000 s before the other arrives. Rho makes up for that time.
TEST(FinishTimeFairness, MakesUpForTimeLost) {
    tests::World world(1);
    world.add(8, tests::work_bytes(8, 20000)).submit_s = -20000;
    world.add(8, tests::work_bytes(8, 20000));
    const auto fair = policy("finish-time-fairness");
    const auto parts = shares(world, *fair);
    // Both jobs reach the same rho: (20,000 + 20,000 / x) / 40,000 = 20,000 / (1 - x) / 40,000.
    EXPECT_THAT(sum_of(parts[0]), DoubleNear(0.618, 0.01));
    EXPECT_THAT(sum_of(parts[1]), DoubleNear(0.382, 0.01));
}

// Compares with a search over all divisions of one GPU's time among three jobs.
TEST(FinishTimeFairness, LargestRhoIsMinimal) {
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
        tests::TestRandom random(seed);
        tests::World world(1);
        world.now_s = 1000;
        std::vector<double> lengths, elapsed;
        for (int j = 0; j < 3; ++j) {
            lengths.push_back(20000 + random.below(100000));
            elapsed.push_back(random.below(40000));
            world.add(8, tests::work_bytes(8, lengths.back())).submit_s = 1000 - elapsed.back();
        }
        const auto rho = [&](std::size_t j, double part) {
            return (elapsed[j] + lengths[j] / std::max(part, 1e-9)) / (3 * lengths[j]);
        };
        double best = kNever;
        for (int a = 0; a <= 400; ++a) {
            for (int b = 0; a + b <= 400; ++b) {
                const double worst = std::max({rho(0, a / 400.0), rho(1, b / 400.0), rho(2, (400 - a - b) / 400.0)});
                best = std::min(best, worst);
            }
        }
        const auto fair = policy("finish-time-fairness");
        const auto parts = shares(world, *fair);
        double worst = 0;
        for (std::size_t j = 0; j < 3; ++j) worst = std::max(worst, rho(j, sum_of(parts[j])));
        EXPECT_LT(worst, best * 1.01) << "seed " << seed;
    }
}

TEST(WaterFilling, TenantsShareByWeightAndJobsShareTheirTenantsPart) {
    tests::World world(1);
    world.tenants = {{.name = "one", .weight = 3}, {.name = "two", .weight = 1}};
    world.add(8, kNever);
    world.add(8, kNever).tenant = 1;
    world.add(8, kNever).tenant = 1;
    const auto fair = policy("water-filling");
    const auto parts = run_rounds(world, *fair, 160);
    EXPECT_NEAR(sum_of(parts[0]), 0.75, 0.05);
    EXPECT_NEAR(sum_of(parts[1]), 0.125, 0.05);
    EXPECT_NEAR(sum_of(parts[2]), 0.125, 0.05);
}

TEST(WaterFilling, UnusedPartGoesToSiblingsFirst) {
    const std::vector<Tenant> tenants{{.name = "left", .weight = 1},
                                      {.name = "right", .weight = 1},
                                      {.name = "small", .weight = 1, .parent = 0},
                                      {.name = "large", .weight = 1, .parent = 0}};
    const std::vector<Leaf> leaves{{.tenant = 2, .demand = 1}, {.tenant = 3, .demand = 8}, {.tenant = 1, .demand = 8}};
    const TenantTree hierarchy(tenants, leaves);
    EXPECT_THAT(hierarchy.divide(8), ElementsAre(1, 3, 4));
    EXPECT_THAT(hierarchy.weights({true, true, true}), ElementsAre(0.25, 0.25, 0.5));
    EXPECT_THAT(hierarchy.weights({false, true, true}), ElementsAre(0, 0.5, 0.5));
}

TEST(WaterFilling, TenantsOwnJobsCountAsOneMoreChildTenant) {
    const std::vector<Tenant> tenants{{.name = "all"}, {.name = "below", .weight = 3, .parent = 0}};
    const std::vector<Leaf> leaves{{.tenant = 0, .demand = 8}, {.tenant = 0, .demand = 8}, {.tenant = 1, .demand = 8}};
    EXPECT_THAT(TenantTree(tenants, leaves).divide(8), ElementsAre(1, 1, 6));
}

// Two types with almost equal rates are like one type, but they make the policy use the linear program instead of the
// closed form.
TEST(WaterFilling, ProgramAndClosedFormAgree) {
    for (std::uint32_t seed = 0; seed < 40; ++seed) {
        tests::TestRandom random(seed);
        std::vector<std::vector<double>> parts;
        for (const double second : {1.0, 1 + 1e-7}) {
            tests::TestRandom same = random;
            tests::World world(1, {"a", "b"});
            world.tenants = {{.name = "one", .weight = 1.0 + same.below(3)},
                             {.name = "two", .weight = 1.0 + same.below(3)},
                             {.name = "three", .weight = 1.0 + same.below(3), .parent = 0},
                             {.name = "four", .weight = 1.0 + same.below(3), .parent = 0}};
            for (int j = 0; j < 9; ++j) {
                JobSpec& spec = world.add(1U << same.below(3), kNever);
                spec.tenant = same.below(4);
                spec.weight = 1.0 + same.below(4);
                spec.ideal_bytes_per_second[1] *= second;
            }
            const auto fair = policy("water-filling");
            std::vector<double>& run_parts = parts.emplace_back();
            for (const auto& part : shares(world, *fair)) run_parts.push_back(sum_of(part));
        }
        for (std::size_t j = 0; j < parts[0].size(); ++j) {
            EXPECT_NEAR(parts[0][j], parts[1][j], 1e-3) << "seed " << seed << ", job " << j;
        }
    }
}

}  // namespace
}  // namespace larder::scheduler
