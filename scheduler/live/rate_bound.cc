#include "scheduler/live/rate_bound.h"

#include <algorithm>
#include <map>
#include <vector>

namespace larder::scheduler {
namespace {

// A limit counts as full from this utilization on: plans are rounded, and made from the cache's content at one moment.
constexpr double kFull = 0.95;

// The load of one node, in bytes per second.
struct NodeLoad {
    double in = 0;
    double out = 0;
    double disk = 0;
};

using Loads = std::map<std::uint32_t, NodeLoad>;

// Returns the load that a job is predicted to put on nodes. Its hits come from the nodes of its peer groups, in
// proportion to their part of the dataset. Misses, and hits from other nodes, come in over the network of the nodes
// that it runs on.
Loads loads_of(const allocator::ClusterState& state, const allocator::Plan& plan, std::size_t j) {
    const allocator::JobPlan& planned = plan.jobs[j];
    const allocator::GpuShares& placement = placement_of(state, plan, j);
    double gpus = 0;
    for (const allocator::GpuShare& share : placement) gpus += share.gpus;
    std::map<std::uint32_t, double> parts;
    std::map<std::uint32_t, double> group_parts;
    for (const allocator::GpuShare& share : placement) {
        const double part = gpus > 0 ? share.gpus / gpus : 1.0 / static_cast<double>(placement.size());
        parts[share.node] += part;
        group_parts[state.nodes[share.node].peer_group] += part;
    }
    const auto group_part = [&](std::uint32_t node) {
        const auto found = group_parts.find(state.nodes[node].peer_group);
        return found == group_parts.end() ? 0.0 : found->second;
    };
    const std::vector<allocator::NodeCache>& cached = state.datasets[state.jobs[j].dataset].cached;
    double weights = 0;
    for (const allocator::NodeCache& cache : cached) {
        weights += group_part(cache.node) * static_cast<double>(cache.bytes());
    }
    Loads loads;
    const double rate = planned.predicted_bytes_per_second;
    for (const auto& [node, part] : parts) loads[node].in += part * rate;
    for (const allocator::NodeCache& cache : cached) {
        const double in_group = group_part(cache.node);
        if (weights <= 0 || in_group <= 0 || cache.bytes() == 0) continue;
        const double hits = rate * planned.hit_ratio * in_group * static_cast<double>(cache.bytes()) / weights;
        const auto own_part = parts.find(cache.node);
        const double own = own_part == parts.end() ? 0 : own_part->second / in_group * hits;
        NodeLoad& load = loads[cache.node];
        load.in -= own;
        load.out += hits - own;
        load.disk += hits * static_cast<double>(cache.disk_bytes) / static_cast<double>(cache.bytes());
    }
    return loads;
}

}  // namespace

RateBound rate_bound(const allocator::ClusterState& state, const allocator::Plan& plan, std::string_view name) {
    double remote = 0;
    std::vector<NodeLoad> sums(state.nodes.size());
    Loads own;
    double own_remote = 0;
    double granted = 0;
    for (std::size_t j = 0; j < state.jobs.size() && j < plan.jobs.size(); ++j) {
        const allocator::JobPlan& planned = plan.jobs[j];
        if (!planned.running) continue;
        const double miss_rate = planned.predicted_bytes_per_second * (1 - planned.hit_ratio);
        remote += miss_rate;
        Loads loads = loads_of(state, plan, j);
        for (const auto& [node, load] : loads) {
            sums[node].in += load.in;
            sums[node].out += load.out;
            sums[node].disk += load.disk;
        }
        if (state.jobs[j].name != name) continue;
        own = std::move(loads);
        own_remote = miss_rate;
        granted = planned.bandwidth_bytes_per_second;
    }
    const bool grant_covers_misses = granted >= kFull * own_remote;
    if (!grant_covers_misses || remote >= kFull * state.remote_bytes_per_second) return {};
    RateBound bound;
    double fullest = kFull;
    for (const auto& [node, load] : own) {
        const allocator::ClusterNode& cluster_node = state.nodes[node];
        const auto consider = [&](RateBound::Kind kind, double own_load, double total_load, double limit) {
            if (own_load <= 0 || total_load < fullest * limit) return;
            fullest = total_load / limit;
            bound = {.kind = kind, .node = cluster_node.name};
        };
        consider(RateBound::Kind::network, load.in, sums[node].in, cluster_node.nic_bytes_per_second);
        consider(RateBound::Kind::network, load.out, sums[node].out, cluster_node.nic_bytes_per_second);
        consider(RateBound::Kind::disk, load.disk, sums[node].disk, cluster_node.disk_read_bytes_per_second);
    }
    return bound;
}

}  // namespace larder::scheduler
