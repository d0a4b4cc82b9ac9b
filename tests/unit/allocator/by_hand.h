#pragma once

// Helpers for cases worked out by hand: they build small clusters and compare plans number by number. Bytes are in GB,
// rates in GB per second.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "allocator/assign.h"

namespace larder::test {

inline constexpr double kBytesPerGB = 1e9;
inline constexpr double kTolerance = 1e-6;  // quotas are whole bytes, and equal shares are kept to seven digits

inline std::uint64_t bytes(double gb) {
    return static_cast<std::uint64_t>(gb * kBytesPerGB);
}

// One node that has all the cache and enough GPUs. Its network and disk never bind.
inline allocator::ClusterState cluster(double remote, double cache) {
    allocator::ClusterState state{.remote_bytes_per_second = remote * kBytesPerGB};
    state.nodes.push_back({.name = "node", .gpus = 100, .disk_bytes = bytes(cache)});
    return state;
}

inline allocator::ClusterDataset& add_dataset(allocator::ClusterState& state, const char* name, double size) {
    return state.datasets.emplace_back(allocator::ClusterDataset{.name = name, .size_bytes = bytes(size)});
}

inline allocator::ClusterJob& add_job(allocator::ClusterState& state, const char* name, std::uint32_t dataset,
                                      double ideal, std::uint32_t node = 0) {
    return state.jobs.emplace_back(allocator::ClusterJob{.name = name,
                                                         .dataset = dataset,
                                                         .gpus = 1,
                                                         .ideal_bytes_per_second = ideal * kBytesPerGB,
                                                         .placement = {{.node = node, .gpus = 1}}});
}

inline allocator::Plan planned(const allocator::ClusterState& state, const allocator::Objective& objective) {
    auto plan = assign(state, objective);
    EXPECT_TRUE(plan) << plan.error().message;
    return plan ? *plan : allocator::Plan{};
}

inline allocator::Plan planned(const allocator::ClusterState& state, allocator::ObjectiveKind kind) {
    return planned(state, allocator::Objective{.kind = kind});
}

inline void expect_quotas(const allocator::Plan& plan, const std::vector<double>& expected) {
    ASSERT_EQ(plan.datasets.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(static_cast<double>(plan.datasets[i].quota_bytes) / kBytesPerGB, expected[i], kTolerance)
            << "dataset " << i;
    }
}

inline void expect_each(const allocator::Plan& plan, double allocator::JobPlan::* field,
                        const std::vector<double>& expected) {
    ASSERT_EQ(plan.jobs.size(), expected.size());
    for (std::size_t j = 0; j < expected.size(); ++j) {
        EXPECT_NEAR(plan.jobs[j].*field / kBytesPerGB, expected[j], kTolerance) << "job " << j;
    }
}

inline void expect_steady_rates(const allocator::Plan& plan, const std::vector<double>& expected) {
    SCOPED_TRACE("steady rates");
    expect_each(plan, &allocator::JobPlan::steady_bytes_per_second, expected);
}
inline void expect_rates_now(const allocator::Plan& plan, const std::vector<double>& expected) {
    SCOPED_TRACE("rates now");
    expect_each(plan, &allocator::JobPlan::predicted_bytes_per_second, expected);
}
inline void expect_bandwidths(const allocator::Plan& plan, const std::vector<double>& expected) {
    SCOPED_TRACE("bandwidths");
    expect_each(plan, &allocator::JobPlan::bandwidth_bytes_per_second, expected);
}
inline void expect_equal_shares(const allocator::Plan& plan, const std::vector<double>& expected) {
    SCOPED_TRACE("equal shares");
    expect_each(plan, &allocator::JobPlan::equal_share_bytes_per_second, expected);
}

}  // namespace larder::test
