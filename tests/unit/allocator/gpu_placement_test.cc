// Placement of waiting jobs: compared with every possible placement on small clusters, compared with a placement that
// ignores data, and checked for what must hold of any placement.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "allocator/assign.h"
#include "tests/support/property_cases.h"
#include "tests/support/test_units.h"
#include "tests/unit/allocator/small_clusters.h"

namespace larder::test {
namespace {

using namespace allocator;

constexpr std::uint64_t kCases = test::property_cases(10'000, 40);
constexpr double kSame = 1e-6;  // plans that differ by less are equal

Objective objective_of(std::uint64_t seed) {
    return {.kind = static_cast<ObjectiveKind>(seed % 3), .effort = Effort::usual};
}

// The value of a plan that places `job`, by the rates that it predicts.
PlanValue value(const ClusterState& state, const Objective& objective, std::size_t job) {
    const auto plan = assign(state, objective);
    EXPECT_TRUE(plan) << plan.error().message;
    PlanValue value;
    if (!plan) return value;
    for (std::size_t j = 0; j < state.jobs.size(); ++j) {
        const ClusterJob& planned = state.jobs[j];
        const double rate = plan->jobs[j].steady_bytes_per_second;
        value.sum += rate;
        if (objective.kind != ObjectiveKind::max_min) continue;
        value.ratios.push_back(rate / (planned.weight * planned.ideal_bytes_per_second));
    }
    std::ranges::sort(value.ratios);
    value.ideal = state.jobs[job].ideal_bytes_per_second;
    EXPECT_GT(plan->jobs[job].steady_bytes_per_second, 0);
    return value;
}

PlanValue value_with(ClusterState state, const Objective& objective, std::size_t job, const GpuShares& placement) {
    state.jobs[job].placement = placement;
    return value(state, objective, job);
}

std::string percent(std::uint64_t count, std::uint64_t total) {
    return std::to_string(100 * static_cast<double>(count) / static_cast<double>(total));
}

// --- measured on random clusters

TEST(GpuPlacement, PlanIsWithinOnePercentOfBestPlacement) {
    std::uint64_t within = 0;
    std::uint64_t matters = 0;
    std::uint64_t within_where_it_matters = 0;
    for (std::uint64_t seed = 0; seed < kCases; ++seed) {
        const ClusterState state = SmallClusters(seed).make();
        const std::size_t job = state.jobs.size() - 1;
        const Objective objective = objective_of(seed);
        const PlanValue found = value(state, objective, job);
        std::optional<PlanValue> best, worst;
        for_each_placement(free_gpus(state), state.jobs[job].gpus, [&](const GpuShares& placement) {
            const PlanValue one = value_with(state, objective, job, placement);
            if (!best || one.better_than(*best, kSame)) best = one;
            if (!worst || worst->better_than(one, kSame)) worst = one;
        });
        ASSERT_FALSE(found.better_than(*best, kSame)) << "seed " << seed;
        const bool is_within = !best->better_than(found, 0.01);
        within += is_within;
        if (best->better_than(*worst, 0.01)) {
            ++matters;
            within_where_it_matters += is_within;
        }
    }
    RecordProperty("percent_within_one_percent", percent(within, kCases));
    RecordProperty("percent_where_placement_matters", percent(matters, kCases));
    RecordProperty("percent_within_where_it_matters", percent(within_where_it_matters, matters));
    EXPECT_GE(within, kCases * 95 / 100);
    // The clusters must offer a real choice.
    EXPECT_GE(matters, kCases * 2 / 5);
    EXPECT_GE(within_where_it_matters, matters * 95 / 100);
}

// Takes the first free GPUs in the order of node names.
GpuShares blind_placement(const ClusterState& state, std::size_t job) {
    GpuShares placement;
    std::uint32_t missing = state.jobs[job].gpus;
    const auto free = free_gpus(state);
    for (std::uint32_t node = 0; node < free.size() && missing > 0; ++node) {
        const std::uint32_t gpus = std::min(missing, free[node]);
        if (gpus > 0) placement.push_back({.node = node, .gpus = gpus});
        missing -= gpus;
    }
    return placement;
}

TEST(GpuPlacement, BeatsPlacementThatIgnoresData) {
    std::uint64_t better = 0;
    std::uint64_t worse = 0;
    for (std::uint64_t seed = 0; seed < kCases; ++seed) {
        const ClusterState state = SmallClusters(seed).make();
        const std::size_t job = state.jobs.size() - 1;
        const Objective objective = objective_of(seed);
        const PlanValue found = value(state, objective, job);
        const PlanValue blind = value_with(state, objective, job, blind_placement(state, job));
        better += found.better_than(blind, 0.01);
        worse += blind.better_than(found, 0.01);
    }
    RecordProperty("percent_better", percent(better, kCases));
    RecordProperty("percent_worse", percent(worse, kCases));
    EXPECT_GE(better, kCases / 5);
    EXPECT_LE(worse, kCases / 1000);
}

// --- worked out by hand

// Nodes "a", "b", ... of 4 GPUs and 100 GB of disk, and one dataset of 100 GB.
ClusterState uniform_cluster(std::size_t nodes) {
    ClusterState state{.remote_bytes_per_second = 100e9};
    for (std::size_t n = 0; n < nodes; ++n) {
        state.nodes.push_back({.name = std::string(1, static_cast<char>('a' + n)), .gpus = 4, .disk_bytes = 100 * kGB});
    }
    state.datasets.push_back({.name = "images", .size_bytes = 100 * kGB});
    return state;
}

ClusterJob waiting_job(const char* name, std::uint32_t gpus) {
    return {.name = name, .gpus = gpus, .ideal_bytes_per_second = 2e9};
}

ClusterJob placed_job(const char* name, GpuShares placement) {
    ClusterJob job = waiting_job(name, 0);
    for (const GpuShare& share : placement) job.gpus += share.gpus;
    job.placement = std::move(placement);
    return job;
}

Plan make_plan(const ClusterState& state, const Objective& objective = {}) {
    auto plan = assign(state, objective);
    EXPECT_TRUE(plan) << plan.error().message;
    return plan ? *plan : Plan{.jobs = std::vector<JobPlan>(state.jobs.size())};
}

TEST(GpuPlacement, JobGoesToNodeWithFreeNetwork) {
    ClusterState state = uniform_cluster(2);
    // No cache: every byte is read over the network, of which "busy" leaves 1 GB/s on "a".
    for (ClusterNode& node : state.nodes) node.disk_bytes = 0;
    state.nodes[0].nic_bytes_per_second = 3e9;
    state.nodes[1].nic_bytes_per_second = 2.5e9;
    state.jobs = {placed_job("busy", {{.node = 0, .gpus = 1}}), waiting_job("new", 2)};
    const Plan plan = make_plan(state);
    EXPECT_EQ(plan.jobs[1].found_placement, (GpuShares{{.node = 1, .gpus = 2}}));
    EXPECT_DOUBLE_EQ(plan.jobs[1].steady_bytes_per_second, 2e9);
    EXPECT_DOUBLE_EQ(plan.jobs[0].steady_bytes_per_second, 2e9);
}

TEST(GpuPlacement, GangThatNeedsMoreNetworkThanOneNodeHasIsSpread) {
    ClusterState state = uniform_cluster(2);
    for (ClusterNode& node : state.nodes) {
        node.disk_bytes = 0;
        node.nic_bytes_per_second = 1e9;
    }
    state.jobs = {waiting_job("new", 4)};
    const Plan plan = make_plan(state);
    EXPECT_EQ(plan.jobs[0].found_placement, (GpuShares{{.node = 0, .gpus = 2}, {.node = 1, .gpus = 2}}));
    EXPECT_DOUBLE_EQ(plan.jobs[0].steady_bytes_per_second, 2e9);
}

// Nothing is cached yet. Only the plan knows that "b" will cache the dataset and "a" cannot.
TEST(GpuPlacement, JobGoesWhereThePlanPutsItsCache) {
    ClusterState state = uniform_cluster(2);
    state.nodes[0].disk_bytes = 0;
    for (ClusterNode& node : state.nodes) node.nic_bytes_per_second = 1e9;
    state.jobs = {waiting_job("new", 2)};
    const Plan plan = make_plan(state);
    EXPECT_EQ(plan.jobs[0].found_placement, (GpuShares{{.node = 1, .gpus = 2}}));
    EXPECT_DOUBLE_EQ(plan.jobs[0].steady_hit_ratio, 1);
    EXPECT_DOUBLE_EQ(plan.jobs[0].steady_bytes_per_second, 2e9);
}

TEST(GpuPlacement, GangStaysOnOneNodeWhenRatesTie) {
    ClusterState state = uniform_cluster(3);
    state.jobs = {placed_job("other", {{.node = 0, .gpus = 2}}), waiting_job("new", 4)};
    const Plan plan = make_plan(state);
    ASSERT_EQ(plan.jobs[1].found_placement.size(), 1u);
    EXPECT_EQ(plan.jobs[1].found_placement[0].gpus, 4u);
    EXPECT_NE(plan.jobs[1].found_placement[0].node, 0u);
}

TEST(GpuPlacement, JobGoesNearItsDataWhenRatesTie) {
    for (std::uint32_t holder = 0; holder < 3; ++holder) {
        ClusterState state = uniform_cluster(3);
        state.datasets[0].cached = {{.node = holder, .disk_bytes = 30 * kGB},
                                    {.node = (holder + 1) % 3, .disk_bytes = 10 * kGB}};
        state.jobs = {waiting_job("new", 2)};
        EXPECT_EQ(make_plan(state).jobs[0].found_placement, (GpuShares{{.node = holder, .gpus = 2}}));
    }
}

TEST(GpuPlacement, EmptyNodesStayFreeWhenAllElseTies) {
    ClusterState state = uniform_cluster(3);
    state.jobs = {placed_job("other", {{.node = 1, .gpus = 2}}), waiting_job("new", 2)};
    EXPECT_EQ(make_plan(state).jobs[1].found_placement, (GpuShares{{.node = 1, .gpus = 2}}));
}

TEST(GpuPlacement, GangThatDoesNotFitWaitsAndOthersArePlaced) {
    ClusterState state = uniform_cluster(2);
    state.jobs = {placed_job("runs", {{.node = 0, .gpus = 3}}), waiting_job("large", 6), waiting_job("small", 5)};
    // The heaviest is placed first, if it can be.
    state.jobs[1].weight = 2;
    const Plan plan = make_plan(state);
    EXPECT_FALSE(plan.jobs[1].running);
    EXPECT_TRUE(plan.jobs[1].found_placement.empty());
    EXPECT_EQ(plan.jobs[1].bandwidth_bytes_per_second, 0);
    EXPECT_EQ(plan.jobs[1].steady_bytes_per_second, 0);
    EXPECT_TRUE(plan.jobs[2].running);
    EXPECT_EQ(plan.jobs[2].found_placement, (GpuShares{{.node = 0, .gpus = 1}, {.node = 1, .gpus = 4}}));
    EXPECT_DOUBLE_EQ(plan.jobs[2].steady_bytes_per_second, 2e9);
    EXPECT_DOUBLE_EQ(plan.jobs[0].steady_bytes_per_second, 2e9);
}

TEST(GpuPlacement, WaitingJobsArePlacedByWeightThenByName) {
    ClusterState state = uniform_cluster(1);
    state.jobs = {waiting_job("b", 3), waiting_job("c", 3), waiting_job("a", 3)};
    EXPECT_TRUE(make_plan(state).jobs[2].running);
    EXPECT_FALSE(make_plan(state).jobs[0].running);
    state.jobs[1].weight = 2;
    EXPECT_TRUE(make_plan(state).jobs[1].running);
    EXPECT_FALSE(make_plan(state).jobs[2].running);
}

TEST(GpuPlacement, NoJobIsPlacedWhenPlacingIsOff) {
    ClusterState state = uniform_cluster(2);
    state.jobs = {waiting_job("new", 2), placed_job("runs", {{.node = 0, .gpus = 1}})};
    const Plan plan = make_plan(state, {.place_jobs = false});
    EXPECT_FALSE(plan.jobs[0].running);
    EXPECT_TRUE(plan.jobs[1].running);
}

TEST(GpuPlacement, JobWithoutGpusIsNotPlaced) {
    ClusterState state = uniform_cluster(1);
    state.jobs = {waiting_job("new", 0)};
    EXPECT_FALSE(make_plan(state).jobs[0].running);
}

TEST(GpuPlacement, BillionsOfGpusArePlacedAtOnce) {
    ClusterState state = uniform_cluster(4);
    for (ClusterNode& node : state.nodes) {
        node.gpus = 4'000'000'000;
        node.nic_bytes_per_second = 5e8;
    }
    state.datasets[0].cached = {{.node = 2, .disk_bytes = 30 * kGB}};
    state.jobs = {waiting_job("new", 4'000'000'000)};
    const Plan plan = make_plan(state);
    std::uint64_t gpus = 0;
    for (const GpuShare& share : plan.jobs[0].found_placement) gpus += share.gpus;
    EXPECT_EQ(gpus, 4'000'000'000u);
    EXPECT_TRUE(plan.jobs[0].running);
}

// --- what holds of any placement

TEST(GpuPlacement, SeveralWaitingJobsNeverShareAGpu) {
    std::uint64_t waited = 0;
    for (std::uint64_t seed = 0; seed < test::property_cases(3000); ++seed) {
        ClusterState state = SmallClusters(seed).make();
        const ClusterJob last = state.jobs.back();
        for (std::uint32_t k = 0; k < 3; ++k) {
            ClusterJob another = last;
            another.name += "-" + std::to_string(k);
            another.gpus = 1 + static_cast<std::uint32_t>((seed + k) % 3);
            state.jobs.push_back(another);
        }
        const Plan plan = make_plan(state, objective_of(seed));
        auto free = free_gpus(state);
        for (std::size_t j = 0; j < state.jobs.size(); ++j) {
            if (!state.jobs[j].placement.empty()) {
                EXPECT_TRUE(plan.jobs[j].found_placement.empty()) << "a running job was moved";
                continue;
            }
            waited += !plan.jobs[j].running;
            if (!plan.jobs[j].running) continue;
            std::uint32_t gpus = 0;
            for (const GpuShare& share : plan.jobs[j].found_placement) {
                ASSERT_LE(share.gpus, free[share.node]) << "seed " << seed;
                EXPECT_GT(share.gpus, 0u);
                free[share.node] -= share.gpus;
                gpus += share.gpus;
            }
            EXPECT_EQ(gpus, state.jobs[j].gpus) << "a gang is placed whole";
        }
        // A job still waits only because too few GPUs were free when its turn came, and too few are free now.
        const std::uint32_t left = std::accumulate(free.begin(), free.end(), 0u);
        for (std::size_t j = 0; j < state.jobs.size(); ++j) {
            if (!plan.jobs[j].running) {
                EXPECT_LT(left, state.jobs[j].gpus);
            }
        }
        if (HasFailure()) FAIL() << "seed " << seed;
    }
    EXPECT_GT(waited, 100u) << "the clusters were too large to show anything";
}

TEST(GpuPlacement, PlacementIsIndependentOfNodeOrder) {
    for (std::uint64_t seed = 0; seed < test::property_cases(2000); ++seed) {
        const ClusterState state = SmallClusters(seed).make();
        const auto last = static_cast<std::uint32_t>(state.nodes.size() - 1);
        ClusterState reversed = state;
        std::ranges::reverse(reversed.nodes);
        for (ClusterDataset& dataset : reversed.datasets) {
            for (NodeCache& cache : dataset.cached) cache.node = last - cache.node;
        }
        for (ClusterJob& job : reversed.jobs) {
            for (GpuShare& share : job.placement) share.node = last - share.node;
        }
        const Objective objective = objective_of(seed);
        GpuShares expected = make_plan(state, objective).jobs.back().found_placement;
        for (GpuShare& share : expected) share.node = last - share.node;
        std::ranges::reverse(expected);
        EXPECT_EQ(make_plan(reversed, objective).jobs.back().found_placement, expected) << "seed " << seed;
    }
}

// --- rules

// Allows the placements that a function accepts, and checks that it is asked about whole gangs only.
class Rules : public PlacementRules {
public:
    explicit Rules(std::function<bool(std::span<const GpuShare>)> rule) : rule_(std::move(rule)) {}

    bool allows(const ClusterState& state, std::uint32_t job, std::span<const GpuShare> placement) const override {
        std::uint32_t gpus = 0;
        for (const GpuShare& share : placement) gpus += share.gpus;
        EXPECT_EQ(gpus, state.jobs[job].gpus) << "asked about a part of a gang";
        EXPECT_TRUE(state.jobs[job].placement.empty());
        return rule_(placement);
    }

private:
    std::function<bool(std::span<const GpuShare>)> rule_;
};

TEST(GpuPlacement, PlacementObeysTheRules) {
    constexpr std::uint64_t kClusters = test::property_cases(3000);
    std::uint64_t forbidden = 0;
    for (std::uint64_t seed = 0; seed < kClusters; ++seed) {
        const ClusterState state = SmallClusters(seed).make();
        // Any rule serves here: this one allows two fifths of all placements, by a hash.
        const Rules rules([&](std::span<const GpuShare> placement) {
            std::uint64_t hash = seed;
            for (const GpuShare& share : placement) hash = hash * 31 + share.node * 7 + share.gpus * 13;
            return hash % 5 < 2;
        });
        const auto job = static_cast<std::uint32_t>(state.jobs.size() - 1);
        bool any_allowed = false;
        for_each_placement(free_gpus(state), state.jobs[job].gpus, [&](const GpuShares& placement) {
            any_allowed = any_allowed || rules.allows(state, job, placement);
        });
        Objective objective = objective_of(seed);
        objective.placement_rules = &rules;
        const JobPlan found = make_plan(state, objective).jobs[job];
        forbidden += !any_allowed;
        EXPECT_EQ(found.running, any_allowed);
        if (found.running) {
            EXPECT_TRUE(rules.allows(state, job, found.found_placement));
        }
        if (HasFailure()) FAIL() << "seed " << seed;
    }
    EXPECT_GT(forbidden, kClusters / 30) << "the rules forbade every placement in too few clusters";
}

TEST(GpuPlacement, JobWaitsWhenRulesAllowNothing) {
    ClusterState state = uniform_cluster(4);
    state.jobs = {waiting_job("new", 2), placed_job("runs", {{.node = 0, .gpus = 1}})};
    const Rules none([](std::span<const GpuShare>) { return false; });
    const Plan plan = make_plan(state, {.placement_rules = &none});
    EXPECT_FALSE(plan.jobs[0].running);
    // The rules are not applied to running jobs.
    EXPECT_TRUE(plan.jobs[1].running);
}

TEST(GpuPlacement, BestPlacementTheRulesAllowIsTaken) {
    ClusterState state = uniform_cluster(3);
    state.datasets[0].cached = {{.node = 0, .disk_bytes = 30 * kGB}, {.node = 2, .disk_bytes = 10 * kGB}};
    state.jobs = {waiting_job("new", 2)};
    const Rules not_the_first([](std::span<const GpuShare> placement) { return placement[0].node != 0; });
    EXPECT_EQ(make_plan(state, {.placement_rules = &not_the_first}).jobs[0].found_placement,
              (GpuShares{{.node = 2, .gpus = 2}}));
}

// --- large clusters, where not every placement can be tried

ClusterState large_cluster(std::uint32_t waiting_jobs) {
    ClusterState state{.remote_bytes_per_second = 100e9};
    for (std::uint32_t n = 0; n < 300; ++n) {
        state.nodes.push_back({.name = "node-" + std::to_string(1000 + n), .gpus = 8, .disk_bytes = 100 * kGB});
    }
    for (std::uint32_t i = 0; i < 10; ++i) {
        state.datasets.push_back({.name = "dataset-" + std::to_string(i), .size_bytes = 100 * kGB});
        state.datasets[i].cached = {{.node = 20 * i + 7, .disk_bytes = 50 * kGB}};
    }
    for (std::uint32_t j = 0; j < waiting_jobs; ++j) {
        state.jobs.push_back(
            {.name = "job-" + std::to_string(1000 + j), .dataset = j % 10, .gpus = 4, .ideal_bytes_per_second = 1e8});
    }
    return state;
}

TEST(GpuPlacement, ManyJobsOnLargeClusterGoNearTheirData) {
    const ClusterState state = large_cluster(500);
    const Plan plan = make_plan(state);
    for (std::uint32_t j = 0; j < 500; ++j) {
        EXPECT_TRUE(plan.jobs[j].running);
        // Two jobs fit on the node that has their data.
        if (j < 20) {
            EXPECT_EQ(plan.jobs[j].found_placement, (GpuShares{{.node = 20 * (j % 10) + 7, .gpus = 4}})) << j;
        }
    }
}

TEST(GpuPlacement, ManyJobsOnLargeClusterAvoidDiskThatIsTooSlow) {
    ClusterState state = large_cluster(500);
    for (std::uint32_t n = 0; n < state.nodes.size(); ++n) state.nodes[n].peer_group = n;
    // Half of the bytes read on these nodes come from the disk, and f* is 1e8.
    state.nodes[7].disk_read_bytes_per_second = 1e7;
    state.nodes[27].disk_read_bytes_per_second = 1e9;
    const Plan plan = make_plan(state);
    EXPECT_NE(plan.jobs[0].found_placement[0].node, 7u);
    EXPECT_EQ(plan.jobs[1].found_placement[0].node, 27u);
}

TEST(GpuPlacement, ManyJobsOnLargeClusterStayNearSlowDiskIfPeersAreNoFaster) {
    ClusterState state = large_cluster(500);
    for (ClusterNode& node : state.nodes) node.disk_read_bytes_per_second = 4e7;
    const Plan plan = make_plan(state);
    for (std::uint32_t j = 0; j < 10; ++j) {
        EXPECT_EQ(plan.jobs[j].found_placement, (GpuShares{{.node = 20 * j + 7, .gpus = 4}})) << j;
    }
}

TEST(GpuPlacement, FewAllowedNodesOfLargeClusterAreFound) {
    const ClusterState state = large_cluster(8);
    const Rules cell([](std::span<const GpuShare> placement) {
        return std::ranges::all_of(placement,
                                   [](const GpuShare& share) { return share.node >= 250 && share.node < 254; });
    });
    const Plan plan = make_plan(state, {.placement_rules = &cell});
    for (const JobPlan& job : plan.jobs) {
        ASSERT_TRUE(job.running);
        EXPECT_GE(job.found_placement[0].node, 250u);
        EXPECT_LT(job.found_placement[0].node, 254u);
    }
}

}  // namespace
}  // namespace larder::test
