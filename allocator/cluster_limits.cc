#include "allocator/cluster_limits.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "allocator/quota_placement.h"

namespace larder::allocator {
namespace {

// The highest demand on a node, in bytes per second.
struct NodeDemand {
    double in = 0;
    double out = 0;
    double disk = 0;
};

// Each part of a job hits the nodes of its group in proportion to the bytes they cache. Returns the share of a job's
// bytes that comes from a node, for each byte the node caches, in a group where all of the job runs.
double hits_per_byte(const Problem& problem, std::uint32_t job, double hit_ratio, std::span<const double> cache_bytes) {
    double weights = 0;
    for (const Read& read : problem.reads_of(job)) weights += read.part * cache_bytes[read.cache];
    return weights > 0 ? hit_ratio / weights : 0;
}

// Returns the demand on each node if every job reads at f* and no bytes are found on the node that reads them.
std::vector<NodeDemand> highest_demand(const Problem& problem, std::span<const double> hits_per_byte,
                                       std::span<const std::vector<NodeCache>> quotas) {
    std::vector<NodeDemand> demand(problem.group_of_node.size());
    std::vector<double> hits(problem.caches.size());  // bytes per second, for each byte cached
    for (std::uint32_t j = 0; j < problem.jobs.size(); ++j) {
        for (const Run& run : problem.runs_of(j)) demand[run.node].in += problem.ideals[j] * run.part;
        for (const Read& read : problem.reads_of(j)) {
            hits[read.cache] += problem.ideals[j] * read.part * hits_per_byte[j];
        }
    }
    for (std::uint32_t i = 0; i < quotas.size(); ++i) {
        for (const NodeCache& quota : quotas[i]) {
            const double rate = hits[problem.cache_on(i, quota.node)];
            demand[quota.node].out += rate * static_cast<double>(quota.bytes());
            demand[quota.node].disk += rate * static_cast<double>(quota.disk_bytes);
        }
    }
    return demand;
}

// The numbers of a node's bounds.
struct NodeLimits {
    std::uint32_t in = RateLimits::kNoLimit;
    std::uint32_t out = RateLimits::kNoLimit;
    std::uint32_t disk = RateLimits::kNoLimit;

    bool any() const {
        return in != RateLimits::kNoLimit || out != RateLimits::kNoLimit || disk != RateLimits::kNoLimit;
    }
};

}  // namespace

RateLimits cluster_limits(const ClusterState& state, const Problem& problem, std::span<const double> hit_ratios,
                          std::span<const std::vector<NodeCache>> quotas) {
    const bool node_bounds = std::ranges::any_of(state.nodes, [](const ClusterNode& node) {
        return std::isfinite(node.nic_bytes_per_second) || std::isfinite(node.disk_read_bytes_per_second);
    });
    if (!node_bounds) return RateLimits::of_remote(problem, hit_ratios);

    const CacheSplit cache_bytes = split_of(problem, quotas);
    std::vector<double> per_byte(problem.jobs.size());
    for (std::uint32_t j = 0; j < per_byte.size(); ++j) {
        per_byte[j] = hits_per_byte(problem, j, hit_ratios[j], cache_bytes);
    }
    const std::vector<NodeDemand> demand = highest_demand(problem, per_byte, quotas);
    RateLimits limits(problem.jobs.size());
    const std::uint32_t remote = limits.add(problem.remote);
    std::vector<NodeLimits> limits_of(state.nodes.size());
    bool any = false;
    for (const std::uint32_t n : problem.nodes_in_order) {
        const auto add = [&](double demanded, double capacity) {
            constexpr double kAlmost = 1 - 1e-9;
            return demanded > capacity * kAlmost ? limits.add(capacity) : RateLimits::kNoLimit;
        };
        const ClusterNode& node = state.nodes[n];
        limits_of[n] = {.in = add(demand[n].in, node.nic_bytes_per_second),
                        .out = add(demand[n].out, node.nic_bytes_per_second),
                        .disk = add(demand[n].disk, node.disk_read_bytes_per_second)};
        any = any || limits_of[n].any();
    }
    if (!any) return RateLimits::of_remote(problem, hit_ratios);

    std::vector<double> part_of_node(state.nodes.size());  // the share of the job's bytes that is read there
    std::vector<double> part_of_group(problem.group_bytes.size());
    std::vector<double> hits_at(state.nodes.size());  // the share of the job's bytes that is found there
    std::vector<NodeCache> quotas_on_limited_nodes;   // the dataset's quotas on nodes that may be too slow
    for (std::uint32_t j = 0; j < problem.jobs.size(); ++j) {
        const std::uint32_t dataset = problem.jobs[j].dataset;
        if (j == problem.datasets[dataset].jobs_begin) {
            quotas_on_limited_nodes.clear();
            std::ranges::copy_if(quotas[dataset], std::back_inserter(quotas_on_limited_nodes),
                                 [&](const NodeCache& quota) { return limits_of[quota.node].any(); });
        }
        limits.use(remote, j, 1 - hit_ratios[j], problem.bandwidth_floors[j]);
        const std::span<const Run> runs = problem.runs_of(j);
        for (const Run& run : runs) part_of_node[run.node] = run.part;
        for (const Read& read : problem.reads_of(j)) part_of_group[problem.caches[read.cache].group] = read.part;
        for (const NodeCache& quota : quotas_on_limited_nodes) {
            const double in_group = part_of_group[problem.group_of_node[quota.node]];
            if (in_group <= 0) continue;
            hits_at[quota.node] = per_byte[j] * in_group * static_cast<double>(quota.bytes());
            limits.use(limits_of[quota.node].out, j, hits_at[quota.node] * (1 - part_of_node[quota.node] / in_group));
            limits.use(limits_of[quota.node].disk, j, per_byte[j] * in_group * static_cast<double>(quota.disk_bytes));
        }
        // Bytes that a node caches itself do not cross its network.
        for (const Run& run : runs) {
            if (limits_of[run.node].in == RateLimits::kNoLimit) continue;
            const double in_group = part_of_group[problem.group_of_node[run.node]];
            limits.use(limits_of[run.node].in, j, run.part - run.part / in_group * hits_at[run.node]);
        }
        for (const Run& run : runs) part_of_node[run.node] = 0;
        for (const Read& read : problem.reads_of(j)) part_of_group[problem.caches[read.cache].group] = 0;
        for (const NodeCache& quota : quotas_on_limited_nodes) hits_at[quota.node] = 0;
    }
    limits.finish();
    return limits;
}

}  // namespace larder::allocator
