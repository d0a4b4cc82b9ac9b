#pragma once

// Breaks a ClusterState in random ways, from a seed, and checks what must still hold of a plan made from one.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/assign.h"

namespace larder::test {

class Corruption {
public:
    explicit Corruption(std::uint64_t seed) : random_(seed ^ 0x5eed) {}

    // Makes one to three changes and returns their names, for a failed test's message.
    std::string apply(allocator::ClusterState& state) {
        std::string changed;
        const std::size_t changes = 1 + below(3);
        for (std::size_t k = 0; k < changes; ++k) changed += change(state) + "; ";
        return changed;
    }

private:
    std::size_t below(std::size_t end) { return random_() % end; }
    auto& any(auto& things) { return things[below(things.size())]; }

    std::string change(allocator::ClusterState& state) {
        using namespace allocator;
        switch (below(10)) {
            case 0: return change_rate("remote", state.remote_bytes_per_second);
            case 1:
            case 2: return state.nodes.empty() ? "no nodes" : change_node(state);
            case 3:
            case 4: return state.datasets.empty() ? "no datasets" : change_dataset(state);
            case 5: return change_list_size(state);
            default: return state.jobs.empty() ? "no jobs" : change_job(state);
        }
    }

    std::string change_node(allocator::ClusterState& state) {
        allocator::ClusterNode& node = any(state.nodes);
        switch (below(6)) {
            case 0: return change_name(state.nodes, node);
            case 1: return change_count("node.gpus", node.gpus);
            case 2: return change_bytes("node.memory", node.memory_bytes);
            case 3: return change_bytes("node.disk", node.disk_bytes);
            case 4: return change_rate("node.disk_read", node.disk_read_bytes_per_second);
            default: return change_rate("node.nic", node.nic_bytes_per_second);
        }
    }

    std::string change_dataset(allocator::ClusterState& state) {
        allocator::ClusterDataset& dataset = any(state.datasets);
        switch (below(6)) {
            case 0: return change_name(state.datasets, dataset);
            case 1: return change_bytes("dataset.size", dataset.size_bytes);
            case 2: return change_bytes("dataset.floor", dataset.quota_floor_bytes);
            case 3: return change_bytes("dataset.cap", dataset.quota_cap_bytes);
            case 4: return "quotas " + change_caches(dataset.quotas);
            default: return "cached " + change_caches(dataset.cached);
        }
    }

    std::string change_job(allocator::ClusterState& state) {
        allocator::ClusterJob& job = any(state.jobs);
        switch (below(11)) {
            case 0: return change_name(state.jobs, job);
            case 1: return change_count("job.dataset", job.dataset);
            case 2: return change_count("job.gpus", job.gpus);
            case 3: return change_rate("job.ideal", job.ideal_bytes_per_second);
            case 4: return change_rate("job.weight", job.weight);
            case 5: return change_rate("job.epochs", job.remaining_epochs);
            case 6: return change_bytes("job.unread", job.unread_bytes);
            case 7: return change_bytes("job.unread_cached", job.unread_cached_bytes);
            case 8: return change_rate("job.floor", job.bandwidth_floor_bytes_per_second);
            case 9: return change_rate("job.cap", job.bandwidth_cap_bytes_per_second);
            default: break;
        }
        if (job.placement.empty() || below(4) == 0) {
            job.placement.push_back({});
            return "one share of GPUs more";
        }
        allocator::GpuShare& share = any(job.placement);
        return below(2) == 0 ? change_count("share.node", share.node) : change_count("share.gpus", share.gpus);
    }

    std::string change_list_size(allocator::ClusterState& state) {
        switch (below(4)) {
            case 0: state.nodes.resize(below(state.nodes.size() + 2)); return "nodes resized";
            case 1: state.datasets.resize(below(state.datasets.size() + 2)); return "datasets resized";
            case 2: state.jobs.resize(below(state.jobs.size() + 2)); return "jobs resized";
            default:
                // One job twice in the list, as if it had been registered twice.
                if (!state.jobs.empty()) state.jobs.push_back(any(state.jobs));
                return "job listed twice";
        }
    }

    std::string change_caches(std::vector<allocator::NodeCache>& list) {
        if (list.empty() || below(4) == 0) {
            list.push_back({.node = static_cast<std::uint32_t>(below(3)), .disk_bytes = below(1u << 30)});
            return "one more";
        }
        allocator::NodeCache& entry = any(list);
        switch (below(3)) {
            case 0: return change_count("node", entry.node);
            case 1: return change_bytes("memory", entry.memory_bytes);
            default: return change_bytes("disk", entry.disk_bytes);
        }
    }

    std::string change_rate(std::string_view field, double& value) {
        using Limits = std::numeric_limits<double>;
        const std::array values{0.0,
                                -0.0,
                                -1.0,
                                1e-3,
                                1.0,
                                1e18,
                                1e100,
                                1e-100,
                                Limits::max(),
                                Limits::lowest(),
                                Limits::min(),
                                Limits::denorm_min(),
                                Limits::infinity(),
                                -Limits::infinity(),
                                Limits::quiet_NaN(),
                                value * 1e3,
                                value / 1e3,
                                -value};
        value = values[below(values.size())];
        return std::string(field) + " = " + std::to_string(value);
    }

    std::string change_bytes(std::string_view field, std::uint64_t& value) {
        constexpr std::uint64_t kTop = std::uint64_t{1} << 53;
        const std::array values{std::uint64_t{0}, std::uint64_t{1}, kTop - 1,     kTop,
                                kTop * 2 - 1,     value * 1000,     value / 1000, ~std::uint64_t{0}};
        value = values[below(values.size())];
        return std::string(field) + " = " + std::to_string(value);
    }

    std::string change_count(std::string_view field, std::uint32_t& value) {
        const std::array values{0u, 1u, 2u, value + 1, value * 2, 1'000'000u, ~0u};
        value = values[below(values.size())];
        return std::string(field) + " = " + std::to_string(value);
    }

    std::string change_name(const auto& things, auto& thing) {
        thing.name = below(2) == 0 ? std::string() : things[below(things.size())].name;
        return "name = \"" + thing.name + "\"";
    }

    std::mt19937_64 random_;
};

// True for messages like "jobs[3].dataset: 7 is not below 2".
inline bool names_a_field(std::string_view message) {
    if (message.starts_with("remote_bytes_per_second: ")) return true;
    for (const std::string_view list : {"nodes[", "datasets[", "jobs["}) {
        if (!message.starts_with(list)) continue;
        const std::size_t index_end = message.find_first_not_of("0123456789", list.size());
        return index_end > list.size() && message.substr(index_end).starts_with("].") &&
               message.find(": ", index_end) != std::string_view::npos;
    }
    return false;
}

inline void expect_valid_plan(const allocator::ClusterState& state, const allocator::Plan& plan) {
    using namespace allocator;
    const auto is_valid = [](double value) { return std::isfinite(value) && value >= 0; };
    ASSERT_EQ(plan.datasets.size(), state.datasets.size());
    ASSERT_EQ(plan.jobs.size(), state.jobs.size());
    EXPECT_TRUE(is_valid(plan.steady_remote_bytes_per_second)) << plan.steady_remote_bytes_per_second;
    double granted = 0;
    for (std::size_t j = 0; j < plan.jobs.size(); ++j) {
        const JobPlan& job = plan.jobs[j];
        EXPECT_TRUE(is_valid(job.bandwidth_bytes_per_second)) << j << ": " << job.bandwidth_bytes_per_second;
        EXPECT_TRUE(is_valid(job.equal_share_bytes_per_second)) << j << ": " << job.equal_share_bytes_per_second;
        EXPECT_TRUE(is_valid(job.predicted_bytes_per_second)) << j << ": " << job.predicted_bytes_per_second;
        EXPECT_TRUE(is_valid(job.steady_bytes_per_second)) << j << ": " << job.steady_bytes_per_second;
        EXPECT_TRUE(is_valid(job.hit_ratio) && job.hit_ratio <= 1) << j << ": " << job.hit_ratio;
        EXPECT_TRUE(is_valid(job.steady_hit_ratio) && job.steady_hit_ratio <= 1) << j << ": " << job.steady_hit_ratio;
        EXPECT_EQ(job.running, !placement_of(state, plan, j).empty()) << j;
        granted += job.bandwidth_bytes_per_second;
    }
    EXPECT_LE(granted, state.remote_bytes_per_second * (1 + 1e-9));
    std::vector<NodeCache> used(state.nodes.size());
    for (const DatasetPlan& dataset : plan.datasets) {
        for (const NodeCache& quota : dataset.quotas) {
            ASSERT_LT(quota.node, state.nodes.size());
            used[quota.node].memory_bytes += quota.memory_bytes;
            used[quota.node].disk_bytes += quota.disk_bytes;
        }
    }
    for (std::size_t n = 0; n < used.size(); ++n) {
        EXPECT_LE(used[n].memory_bytes, state.nodes[n].memory_bytes) << n;
        EXPECT_LE(used[n].disk_bytes, state.nodes[n].disk_bytes) << n;
    }
}

}  // namespace larder::test
