// "What if" on clusters whose plans are worked out by hand.

#include "allocator/service/whatif.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/test_units.h"

namespace larder::allocator {

using test::kGB;
namespace {

// One dataset of 100 GB on two nodes with 25 GB of cache each: h = 0.5, and 1 GB/s of remote carries 2 GB/s.
ClusterState two_nodes() {
    ClusterState state{.remote_bytes_per_second = 1e9};
    state.nodes = {{.name = "a", .gpus = 4, .memory_bytes = 5 * kGB, .disk_bytes = 20 * kGB},
                   {.name = "b", .gpus = 4, .memory_bytes = 5 * kGB, .disk_bytes = 20 * kGB}};
    state.datasets = {{.name = "images", .size_bytes = 100 * kGB}};
    state.jobs = {{.name = "vision",
                   .dataset = 0,
                   .gpus = 4,
                   .ideal_bytes_per_second = 1.6e9,
                   .placement = {{.node = 0, .gpus = 4}}}};
    return state;
}

const Objective kMaxMin{.kind = ObjectiveKind::max_min, .place_jobs = false};

Comparison compare(const ClusterState& state, const WhatIfChange& change) {
    auto comparison = what_if(state, kMaxMin, change);
    EXPECT_TRUE(comparison.has_value()) << comparison.error().message;
    return comparison.value_or(Comparison{});
}

const JobPlan& plan_of(const WhatIfOutcome& outcome, const std::string& job) {
    const auto found = std::ranges::find(outcome.state.jobs, job, &ClusterJob::name);
    EXPECT_NE(found, outcome.state.jobs.end()) << job;
    return outcome.plan.jobs[static_cast<std::size_t>(found - outcome.state.jobs.begin())];
}

Error refused(const WhatIfChange& change) {
    const auto comparison = what_if(two_nodes(), kMaxMin, change);
    EXPECT_FALSE(comparison.has_value());
    return comparison ? Error{} : comparison.error();
}

TEST(WhatIf, SlowerRemoteLowersRate) {
    const Comparison comparison = compare(two_nodes(), {.remote_bytes_per_second = 0.6e9});
    EXPECT_DOUBLE_EQ(plan_of(comparison.before, "vision").steady_bytes_per_second, 1.6e9);
    EXPECT_NEAR(plan_of(comparison.after, "vision").steady_bytes_per_second, 1.2e9, 1);
    EXPECT_EQ(comparison.before.state.remote_bytes_per_second, 1e9);
}

TEST(WhatIf, PinFixesQuotaOfOneDataset) {
    const Comparison comparison = compare(two_nodes(), {.pins = {{.dataset = "images", .bytes = 10 * kGB}}});
    EXPECT_EQ(comparison.before.plan.datasets[0].quota_bytes, 50 * kGB);
    EXPECT_EQ(comparison.after.plan.datasets[0].quota_bytes, 10 * kGB);
    EXPECT_NEAR(plan_of(comparison.after, "vision").steady_bytes_per_second, 1e9 / 0.9, 1e6);
    EXPECT_EQ(refused({.pins = {{.dataset = "lost", .bytes = 1}}}).code, ErrorCode::not_found);
}

TEST(WhatIf, CacheIsAddedAndRemovedInProportion) {
    Comparison comparison = compare(two_nodes(), {.cache_bytes = 50 * static_cast<std::int64_t>(kGB)});
    EXPECT_EQ(comparison.after.state.nodes[0].memory_bytes, 10 * kGB);
    EXPECT_EQ(comparison.after.state.nodes[0].disk_bytes, 40 * kGB);
    EXPECT_NEAR(plan_of(comparison.after, "vision").steady_hit_ratio, 1.0, 1e-9);
    comparison = compare(two_nodes(), {.cache_bytes = -50 * static_cast<std::int64_t>(kGB)});
    EXPECT_EQ(comparison.after.plan.datasets[0].quota_bytes, 0u);
    EXPECT_NEAR(plan_of(comparison.after, "vision").steady_bytes_per_second, 1e9, 1);
}

TEST(WhatIf, RemovedCacheTakesCachedBytesWithIt) {
    ClusterState state = two_nodes();
    state.datasets[0].cached = {{.node = 0, .memory_bytes = 5 * kGB, .disk_bytes = 20 * kGB}};
    state.jobs[0].unread_bytes = 40 * kGB;
    state.jobs[0].unread_cached_bytes = 20 * kGB;
    const Comparison comparison = compare(state, {.cache_bytes = -25 * static_cast<std::int64_t>(kGB)});
    EXPECT_EQ(comparison.after.state.datasets[0].cached[0].bytes(), 12'500'000'000u);
    EXPECT_EQ(comparison.after.state.jobs[0].unread_cached_bytes, 10 * kGB);
    EXPECT_DOUBLE_EQ(plan_of(comparison.before, "vision").hit_ratio, 0.5);
    EXPECT_DOUBLE_EQ(plan_of(comparison.after, "vision").hit_ratio, 0.25);
}

TEST(WhatIf, NodesWithoutCacheGetEqualParts) {
    ClusterState state = two_nodes();
    for (ClusterNode& node : state.nodes) node.memory_bytes = node.disk_bytes = 0;
    const Comparison comparison = compare(state, {.cache_bytes = 50 * static_cast<std::int64_t>(kGB)});
    EXPECT_EQ(comparison.after.state.nodes[1].disk_bytes, 25 * kGB);
    EXPECT_NEAR(plan_of(comparison.after, "vision").steady_hit_ratio, 0.5, 1e-9);
}

TEST(WhatIf, AddedJobTakesItsShare) {
    // Both jobs read the same dataset and hit half of it: 1 GB/s carries 2 GB/s, half for each job.
    const AddedJob added{.spec = {.name = "big", .ideal_bytes_per_second = 1.6e9}, .dataset = "images", .nodes = {"b"}};
    const Comparison comparison = compare(two_nodes(), {.add_jobs = {added}});
    EXPECT_NEAR(plan_of(comparison.after, "vision").steady_bytes_per_second, 1e9, 1e3);
    EXPECT_NEAR(plan_of(comparison.after, "big").steady_bytes_per_second, 1e9, 1e3);
    EXPECT_EQ(comparison.before.state.jobs.size(), 1u);
}

TEST(WhatIf, AddedJobBringsItsDatasetAndIsPlaced) {
    AddedJob added{.spec = {.name = "big"}, .dataset = "new", .dataset_size_bytes = 10 * kGB, .gpus = 4};
    Comparison comparison = compare(two_nodes(), {.add_jobs = {added}});
    ASSERT_EQ(plan_of(comparison.after, "big").found_placement.size(), 1u);
    EXPECT_EQ(plan_of(comparison.after, "big").found_placement[0].node, 1u) << "node a's GPUs are taken";
    added.gpus = 5;
    comparison = compare(two_nodes(), {.add_jobs = {added}});
    EXPECT_FALSE(plan_of(comparison.after, "big").running) << "only four GPUs are free";
    added.gpus = 0;
    comparison = compare(two_nodes(), {.add_jobs = {added}});
    EXPECT_EQ(comparison.after.state.jobs[1].placement.size(), 2u) << "a job without GPUs is spread over all nodes";
    EXPECT_EQ(comparison.after.state.jobs[1].ideal_bytes_per_second, 1e9)
        << "an unknown f* is taken to be the remote's bandwidth";
}

TEST(WhatIf, RemovedJobIsGone) {
    const Comparison comparison = compare(two_nodes(), {.remove_jobs = {"vision"}});
    EXPECT_TRUE(comparison.after.state.jobs.empty());
    EXPECT_EQ(comparison.before.plan.jobs.size(), 1u);
}

TEST(WhatIf, ObjectiveIsReplaced) {
    const Comparison comparison = compare(two_nodes(), {.objective = ObjectiveKind::equal_shares});
    EXPECT_EQ(comparison.before.objective.kind, ObjectiveKind::max_min);
    EXPECT_EQ(comparison.after.objective.kind, ObjectiveKind::equal_shares);
}

TEST(WhatIf, InvalidChangeIsNamed) {
    EXPECT_EQ(refused({.remove_jobs = {"lost"}}).message, "remove_jobs: no job \"lost\" runs");
    EXPECT_EQ(refused({.remove_jobs = {"lost"}}).code, ErrorCode::not_found);
    EXPECT_EQ(refused({.cache_bytes = -51 * static_cast<std::int64_t>(kGB)}).message,
              "cache_bytes: removes more than the nodes' 50.00 GB");
    AddedJob added{.spec = {.name = "vision"}, .dataset = "images"};
    EXPECT_EQ(refused({.add_jobs = {added}}).code, ErrorCode::already_exists);
    added = {.spec = {.name = "big"}, .dataset = "lost"};
    EXPECT_EQ(refused({.add_jobs = {added}}).code, ErrorCode::not_found);
    added = {.spec = {.name = "big"}, .dataset = "images", .nodes = {"z"}};
    EXPECT_EQ(refused({.add_jobs = {added}}).message, "add_jobs[0].nodes: no node \"z\" reports");
    added = {.spec = {.name = "big"}, .dataset = "images", .nodes = {"a"}, .gpus = 1};
    EXPECT_EQ(refused({.add_jobs = {added}}).code, ErrorCode::invalid_argument) << "its GPUs are taken";
    added = {.spec = {.name = "big", .weight = 0}, .dataset = "images"};
    EXPECT_NE(refused({.add_jobs = {added}}).message.find("weight"), std::string::npos);
    EXPECT_EQ(what_if({.remote_bytes_per_second = 1}, kMaxMin, {.cache_bytes = 1}).error().message,
              "cache_bytes: no node reports, so no cache can change");
}

}  // namespace
}  // namespace larder::allocator
