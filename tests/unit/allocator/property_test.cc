// Properties of every plan, checked on 100,000 random clusters. LARDER_PLANS sets the number.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "allocator/assign.h"
#include "tests/oracle/random_state.h"
#include "tests/support/property_cases.h"

namespace larder::test {
namespace {

using namespace allocator;

constexpr double kRounding = 1e-9;

std::uint64_t plan_count() {
    const char* wanted = std::getenv("LARDER_PLANS");
    return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : test::property_cases(100'000, 100);
}

ObjectiveKind kind_of(std::uint64_t seed) {
    return static_cast<ObjectiveKind>(seed % 6);
}

void expect_within_capacity(const ClusterState& state, const Plan& plan) {
    std::vector<NodeCache> used(state.nodes.size());
    std::set<std::uint32_t> groups;
    for (const ClusterNode& node : state.nodes) groups.insert(node.peer_group);
    for (std::size_t i = 0; i < state.datasets.size(); ++i) {
        std::uint64_t sum = 0;
        std::map<std::uint32_t, std::uint64_t> in_group;
        for (const NodeCache& quota : plan.datasets[i].quotas) {
            used[quota.node].memory_bytes += quota.memory_bytes;
            used[quota.node].disk_bytes += quota.disk_bytes;
            sum += quota.bytes();
            in_group[state.nodes[quota.node].peer_group] += quota.bytes();
        }
        EXPECT_EQ(sum, plan.datasets[i].quota_bytes);
        for (const auto& [group, bytes] : in_group) {
            EXPECT_LE(bytes, state.datasets[i].size_bytes);
        }
        EXPECT_LE(sum, state.datasets[i].quota_cap_bytes);
        const std::uint64_t floor = std::min({state.datasets[i].quota_floor_bytes, state.datasets[i].size_bytes});
        if (groups.size() == 1) {
            EXPECT_GE(sum + 1, floor);
        }
    }
    for (std::size_t n = 0; n < used.size(); ++n) {
        EXPECT_LE(used[n].memory_bytes, state.nodes[n].memory_bytes);
        EXPECT_LE(used[n].disk_bytes, state.nodes[n].disk_bytes);
    }
}

void expect_within_bandwidth(const ClusterState& state, const Plan& plan) {
    double granted = 0;
    for (std::size_t j = 0; j < state.jobs.size(); ++j) {
        const JobPlan& job = plan.jobs[j];
        if (!job.running) continue;
        granted += job.bandwidth_bytes_per_second;
        EXPECT_LE(job.bandwidth_bytes_per_second, state.jobs[j].bandwidth_cap_bytes_per_second * (1 + kRounding));
        EXPECT_GE(job.bandwidth_bytes_per_second, state.jobs[j].bandwidth_floor_bytes_per_second * (1 - kRounding));
        EXPECT_LE(job.predicted_bytes_per_second, state.jobs[j].ideal_bytes_per_second * (1 + kRounding));
        // The granted bandwidth suffices for the predicted rate.
        EXPECT_GE(job.bandwidth_bytes_per_second * (1 + kRounding) + 1e-6,
                  job.predicted_bytes_per_second * (1 - job.hit_ratio));
    }
    EXPECT_LE(granted, state.remote_bytes_per_second * (1 + kRounding));
    EXPECT_LE(plan.steady_remote_bytes_per_second, state.remote_bytes_per_second * (1 + kRounding));
}

void expect_network_and_disks_carry_rates(const ClusterState& state, const Plan& plan) {
    std::vector<double> in(state.nodes.size()), out(state.nodes.size()), disk(state.nodes.size());
    for (std::size_t j = 0; j < state.jobs.size(); ++j) {
        const ClusterJob& job = state.jobs[j];
        const JobPlan& planned = plan.jobs[j];
        if (!planned.running) continue;
        std::map<std::uint32_t, double> part;
        double gpus = 0;
        for (const GpuShare& share : placement_of(state, plan, j)) gpus += share.gpus;
        for (const GpuShare& share : placement_of(state, plan, j)) part[share.node] = share.gpus / gpus;
        std::map<std::uint32_t, double> part_of_group;
        for (const auto& [node, job_part] : part) part_of_group[state.nodes[node].peer_group] += job_part;
        const DatasetPlan& dataset = plan.datasets[job.dataset];
        const double rate = planned.steady_bytes_per_second;
        for (const auto& [node, job_part] : part) in[node] += rate * job_part;
        double reached = 0;
        for (const NodeCache& quota : dataset.quotas) {
            reached += part_of_group[state.nodes[quota.node].peer_group] * static_cast<double>(quota.bytes());
        }
        for (const NodeCache& quota : dataset.quotas) {
            const double in_group = part_of_group[state.nodes[quota.node].peer_group];
            if (in_group == 0) continue;
            const auto bytes = static_cast<double>(quota.bytes());
            const double hits = rate * planned.steady_hit_ratio * in_group * bytes / reached;
            out[quota.node] += hits * (1 - part[quota.node] / in_group);
            in[quota.node] -= hits * part[quota.node] / in_group;
            disk[quota.node] += hits * static_cast<double>(quota.disk_bytes) / bytes;
        }
    }
    for (std::size_t n = 0; n < state.nodes.size(); ++n) {
        const ClusterNode& node = state.nodes[n];
        EXPECT_LE(in[n], node.nic_bytes_per_second * (1 + 1e-6));
        EXPECT_LE(out[n], node.nic_bytes_per_second * (1 + 1e-6));
        EXPECT_LE(disk[n], node.disk_read_bytes_per_second * (1 + 1e-6));
    }
}

TEST(PlanProperties, CapacityBandwidthNetworkAndDiskLimitsHold) {
    for (std::uint64_t seed = 0; seed < plan_count(); ++seed) {
        const ClusterState state = RandomState(seed, {.turns = true}).make();
        const auto plan = assign(state, {.kind = kind_of(seed), .effort = effort_of(seed)});
        ASSERT_TRUE(plan.has_value()) << "seed " << seed << ": " << plan.error().message;
        expect_within_capacity(state, *plan);
        expect_within_bandwidth(state, *plan);
        expect_network_and_disks_carry_rates(state, *plan);
        if (HasFailure()) FAIL() << "seed " << seed << " objective " << seed % 6;
    }
}

TEST(PlanProperties, NoJobIsBelowItsEqualShare) {
    std::uint64_t limited = 0;
    for (std::uint64_t seed = 0; seed < plan_count(); ++seed) {
        const ClusterState state = RandomState(seed, {.turns = true}).make();
        const auto plan = assign(state, {.kind = static_cast<ObjectiveKind>(seed % 4), .effort = effort_of(seed)});
        ASSERT_TRUE(plan.has_value());
        for (const JobPlan& job : plan->jobs) {
            EXPECT_GE(job.steady_bytes_per_second, job.equal_share_bytes_per_second * (1 - 1e-6));
        }
        limited += std::ranges::any_of(state.jobs, [](const ClusterJob& job) {
            return job.bandwidth_cap_bytes_per_second < job.ideal_bytes_per_second;
        });
        if (HasFailure()) FAIL() << "seed " << seed;
    }
    EXPECT_GT(limited, plan_count() / 10);
}

TEST(PlanProperties, MoreRemoteOrCacheIsNeverWorse) {
    const RandomStateOptions options{.operator_limits = false, .node_limits = false, .epochs = false};
    std::uint64_t bound = 0;
    std::uint64_t unbound = 0;
    for (std::uint64_t seed = 0; seed < plan_count(); ++seed) {
        ClusterState state = RandomState(seed, options).make();
        if (seed % 4 < 2) state.remote_bytes_per_second /= 8;
        ClusterState more = state;
        if (seed % 2 == 0) {
            more.remote_bytes_per_second *= 1.5;
        } else {
            more.nodes[seed % more.nodes.size()].disk_bytes += std::uint64_t{1} << 36;
        }
        const auto before = assign(state, {.kind = ObjectiveKind::efficiency, .effort = effort_of(seed)});
        const auto after = assign(more, {.kind = ObjectiveKind::efficiency, .effort = effort_of(seed)});
        double needed_before = 0;
        double needed_after = 0;
        for (std::size_t j = 0; j < state.jobs.size(); ++j) {
            const double ideal = state.jobs[j].ideal_bytes_per_second;
            needed_before += ideal * (1 - before->jobs[j].steady_hit_ratio);
            needed_after += ideal * (1 - after->jobs[j].steady_hit_ratio);
        }
        // Whatever binds, no job's guarantee falls.
        for (std::size_t j = 0; j < state.jobs.size(); ++j) {
            const double share_before = before->jobs[j].equal_share_bytes_per_second;
            EXPECT_GE(after->jobs[j].equal_share_bytes_per_second, share_before * (1 - kRounding));
            EXPECT_GE(after->jobs[j].steady_bytes_per_second, share_before * (1 - 1e-6));
        }
        // A larger guarantee may need another split if the remote is too slow for f*. It needs none if all jobs reach
        // f*.
        const bool binds = needed_before > state.remote_bytes_per_second;
        ++(binds ? bound : unbound);
        if (!binds) {
            EXPECT_LE(needed_after, needed_before * (1 + kRounding) + 1e-3);
        }
        if (HasFailure()) FAIL() << "seed " << seed;
    }
    EXPECT_GT(bound, plan_count() / 5);
    EXPECT_GT(unbound, plan_count() / 5);
}

// Maps each index to its index after a shuffle.
std::vector<std::uint32_t> shuffled_indices(std::size_t count, std::mt19937_64& random) {
    std::vector<std::uint32_t> index_after(count);
    std::iota(index_after.begin(), index_after.end(), 0u);
    std::ranges::shuffle(index_after, random);
    return index_after;
}

// Maps the nodes in a list of bytes or GPUs per node to their new indices.
template <typename List>
List with_new_indices(List list, std::span<const std::uint32_t> node_at) {
    for (auto& entry : list) entry.node = node_at[entry.node];
    std::ranges::sort(list, {}, &List::value_type::node);
    return list;
}

TEST(PlanProperties, PlanIsIndependentOfListOrder) {
    for (std::uint64_t seed = 0; seed < plan_count(); ++seed) {
        // Some states have more jobs and nodes, so that rounding of sums differs more.
        RandomStateOptions options{.turns = true};
        if (seed % 20 == 0) options = {.jobs_max = 120, .datasets_max = 8, .nodes_max = 12, .turns = true};
        const ClusterState state = RandomState(seed, options).make();
        ClusterState shuffled = state;
        std::mt19937_64 random(seed);
        const std::vector<std::uint32_t> dataset_at = shuffled_indices(state.datasets.size(), random);
        const std::vector<std::uint32_t> job_at = shuffled_indices(state.jobs.size(), random);
        const std::vector<std::uint32_t> node_at = shuffled_indices(state.nodes.size(), random);
        for (std::uint32_t n = 0; n < node_at.size(); ++n) shuffled.nodes[node_at[n]] = state.nodes[n];
        for (std::uint32_t i = 0; i < dataset_at.size(); ++i) {
            ClusterDataset& dataset = shuffled.datasets[dataset_at[i]] = state.datasets[i];
            dataset.cached = with_new_indices(dataset.cached, node_at);
            dataset.quotas = with_new_indices(dataset.quotas, node_at);
            for (std::uint32_t& node : dataset.expected_on) node = node_at[node];
            std::ranges::sort(dataset.expected_on);
        }
        for (std::uint32_t j = 0; j < job_at.size(); ++j) {
            ClusterJob& job = shuffled.jobs[job_at[j]] = state.jobs[j];
            job.dataset = dataset_at[job.dataset];
            job.placement = with_new_indices(job.placement, node_at);
            job.last_placement = with_new_indices(job.last_placement, node_at);
        }
        const auto plan = assign(state, {.kind = kind_of(seed), .effort = effort_of(seed)});
        const auto other = assign(shuffled, {.kind = kind_of(seed), .effort = effort_of(seed)});
        const auto again = seed % 10 == 0 ? assign(state, {.kind = kind_of(seed), .effort = effort_of(seed)}) : plan;
        for (std::uint32_t i = 0; i < dataset_at.size(); ++i) {
            EXPECT_EQ(with_new_indices(plan->datasets[i].quotas, node_at), other->datasets[dataset_at[i]].quotas);
            EXPECT_EQ(plan->datasets[i].quotas, again->datasets[i].quotas);
        }
        for (std::uint32_t j = 0; j < job_at.size(); ++j) {
            EXPECT_DOUBLE_EQ(plan->jobs[j].bandwidth_bytes_per_second,
                             other->jobs[job_at[j]].bandwidth_bytes_per_second);
            EXPECT_EQ(plan->jobs[j].bandwidth_bytes_per_second, again->jobs[j].bandwidth_bytes_per_second);
        }
        if (HasFailure()) FAIL() << "seed " << seed << " objective " << seed % 6;
    }
}

}  // namespace
}  // namespace larder::test
