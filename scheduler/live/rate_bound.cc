#include "scheduler/live/rate_bound.h"

#include <algorithm>
#include <map>
#include <vector>

namespace larder::scheduler {
namespace {

// A limit that is used to this part counts as full: plans are rounded, and made from what is cached at one moment.
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
        const auto here = parts.find(cache.node);
        const double own = here == parts.end() ? 0 : here->second / in_group * hits;
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
        const double of_remote = planned.predicted_bytes_per_second * (1 - planned.hit_ratio);
        remote += of_remote;
        Loads loads = loads_of(state, plan, j);
        for (const auto& [node, load] : loads) {
            sums[node].in += load.in;
            sums[node].out += load.out;
            sums[node].disk += load.disk;
        }
        if (state.jobs[j].name != name) continue;
        own = std::move(loads);
        own_remote = of_remote;
        granted = planned.bandwidth_bytes_per_second;
    }
    const bool has_what_it_reads = granted >= kFull * own_remote;
    if (!has_what_it_reads || remote >= kFull * state.remote_bytes_per_second) return {};
    RateBound bound;
    double fullest = kFull;
    for (const auto& [node, load] : own) {
        const allocator::ClusterNode& of = state.nodes[node];
        const auto consider = [&](RateBound::Kind kind, double uses, double used, double most) {
            if (uses <= 0 || used < fullest * most) return;
            fullest = used / most;
            bound = {.kind = kind, .node = of.name};
        };
        consider(RateBound::Kind::network, load.in, sums[node].in, of.nic_bytes_per_second);
        consider(RateBound::Kind::network, load.out, sums[node].out, of.nic_bytes_per_second);
        consider(RateBound::Kind::disk, load.disk, sums[node].disk, of.disk_read_bytes_per_second);
    }
    return bound;
}

}  // namespace larder::scheduler
