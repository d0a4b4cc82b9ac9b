#include "tests/oracle/cluster_lp.h"

#include <algorithm>

namespace larder::oracle {

using namespace allocator;

ClusterLp::ClusterLp(const ClusterState& state, const Plan& plan) {
    problem_.remote = state.remote_bytes_per_second;
    std::map<std::uint32_t, std::uint32_t> group_at;
    for (const ClusterNode& node : state.nodes) {
        const auto [found, added] =
            group_at.emplace(node.peer_group, static_cast<std::uint32_t>(problem_.group_cache.size()));
        if (added) problem_.group_cache.push_back(0);
        problem_.group_cache[found->second] += static_cast<double>(node.memory_bytes + node.disk_bytes);
    }
    const bool one_group = problem_.group_cache.size() == 1;
    double unread_floors = 0;
    for (const ClusterDataset& dataset : state.datasets) {
        unread_floors +=
            static_cast<double>(std::min({dataset.quota_floor_bytes, dataset.quota_cap_bytes, dataset.size_bytes}));
    }
    for (std::size_t j = 0; j < state.jobs.size(); ++j) {
        const ClusterJob& job = state.jobs[j];
        LpJob lp_job{.ideal = job.ideal_bytes_per_second,
                     .equal_rate = plan.jobs[j].equal_share_bytes_per_second,
                     .weight = job.weight,
                     .floor = job.bandwidth_floor_bytes_per_second,
                     .cap = job.bandwidth_cap_bytes_per_second};
        double gpus = 0;
        for (const GpuShare& share : job.placement) gpus += share.gpus;
        std::map<std::uint32_t, double> parts;  // by group
        for (const GpuShare& share : job.placement) parts[state.nodes[share.node].peer_group] += share.gpus / gpus;
        for (const auto& [group, part] : parts) {
            const auto number = static_cast<std::uint32_t>(problem_.caches.size());
            const auto [found, added] = caches_.emplace(std::pair{job.dataset, group}, number);
            const ClusterDataset& dataset = state.datasets[job.dataset];
            const auto size = static_cast<double>(dataset.size_bytes);
            // Dataset limits apply only with one group: the program does not model how they are split among several.
            const double cap = one_group ? std::min(size, static_cast<double>(dataset.quota_cap_bytes)) : size;
            const double floor = one_group ? std::min(cap, static_cast<double>(dataset.quota_floor_bytes)) : 0;
            if (added) {
                problem_.caches.push_back({.group = group_at.at(group), .size = size, .floor = floor, .cap = cap});
                unread_floors -= floor;
            }
            lp_job.reads.push_back({.cache = found->second, .part = part});
        }
        double hits = 0;
        for (const LpRead& read : lp_job.reads) {
            const LpCache& cache = problem_.caches[read.cache];
            hits += read.part * std::min(cache.cap, problem_.group_cache[cache.group]) / cache.size;
        }
        lp_job.highest = hits < 1 ? std::min(lp_job.ideal, lp_job.cap / (1 - hits)) : lp_job.ideal;
        problem_.jobs.push_back(std::move(lp_job));
    }
    if (one_group) problem_.group_cache.front() -= unread_floors;
}

std::vector<double> ClusterLp::cache_of(const ClusterState& state, const Plan& plan) const {
    std::vector<double> bytes(problem_.caches.size());
    for (std::uint32_t i = 0; i < plan.datasets.size(); ++i) {
        for (const NodeCache& quota : plan.datasets[i].quotas) {
            const auto found = caches_.find({i, state.nodes[quota.node].peer_group});
            if (found != caches_.end()) bytes[found->second] += static_cast<double>(quota.bytes());
        }
    }
    return bytes;
}

std::vector<double> ClusterLp::ideals() const {
    std::vector<double> rates;
    rates.reserve(problem_.jobs.size());
    for (const LpJob& job : problem_.jobs) rates.push_back(job.ideal);
    return rates;
}

}  // namespace larder::oracle
