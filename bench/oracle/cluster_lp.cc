#include "bench/oracle/cluster_lp.h"

namespace larder::bench::oracle {

using namespace allocator;

ClusterLp::ClusterLp(const ClusterState& state, const Plan& plan) {
    problem_.remote = state.remote_bytes_per_second;
    std::map<std::uint32_t, std::uint32_t> group_at;
    for (const Node& node : state.nodes) {
        const auto [found, added] =
            group_at.emplace(node.peer_group, static_cast<std::uint32_t>(problem_.group_cache.size()));
        if (added) problem_.group_cache.push_back(0);
        problem_.group_cache[found->second] += static_cast<double>(node.memory_bytes + node.disk_bytes);
    }
    for (std::size_t j = 0; j < state.jobs.size(); ++j) {
        const Job& job = state.jobs[j];
        LpJob lp_job{.ideal = job.ideal_bytes_per_second,
                     .equal_rate = plan.jobs[j].equal_share_bytes_per_second,
                     .weight = job.weight};
        double gpus = 0;
        for (const GpuShare& share : job.placement) gpus += share.gpus;
        std::map<std::uint32_t, double> parts;  // by group
        for (const GpuShare& share : job.placement) parts[state.nodes[share.node].peer_group] += share.gpus / gpus;
        for (const auto& [group, part] : parts) {
            const auto number = static_cast<std::uint32_t>(problem_.caches.size());
            const auto [found, added] = caches_.emplace(std::pair{job.dataset, group}, number);
            const auto size = static_cast<double>(state.datasets[job.dataset].size_bytes);
            if (added) problem_.caches.push_back({.group = group_at.at(group), .size = size, .floor = 0, .cap = size});
            lp_job.reads.push_back({.cache = found->second, .part = part});
        }
        problem_.jobs.push_back(std::move(lp_job));
    }
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

}  // namespace larder::bench::oracle
