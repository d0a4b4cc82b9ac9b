// The ClusterState that Cluster makes of reports, registrations, pins and turns.

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/cluster.h"

namespace larder::allocator {

void Cluster::set_turns(std::vector<Turn> turns) {
    const std::set<std::string> before = std::exchange(in_turns_, {});
    turns_ = std::move(turns);
    for (const Turn& turn : turns_) in_turns_.insert(turn.job);
    for (const std::string& job : before) forget_unless_needed(job);
}

void Cluster::add_turns(ClusterState& state) const {
    std::map<std::string_view, std::uint32_t> node_at, dataset_at, job_at;
    if (turns_.empty()) return;
    const auto index_names = [](const auto& things, auto& indices) {
        for (std::uint32_t i = 0; i < things.size(); ++i) indices.emplace(things[i].name, i);
    };
    index_names(state.nodes, node_at);
    index_names(state.datasets, dataset_at);
    index_names(state.jobs, job_at);
    std::vector<ClusterJob> waiting;  // kept apart, because the keys of job_at point into state.jobs
    for (const Turn& turn : turns_) {
        const auto running = job_at.find(turn.job);
        if (running != job_at.end()) {
            state.jobs[running->second].time_share = turn.time_share;
            continue;
        }
        const auto dataset = dataset_at.find(turn.dataset);
        if (dataset == dataset_at.end()) continue;
        ClusterJob job{.name = turn.job,
                       .dataset = dataset->second,
                       .ideal_bytes_per_second =
                           turn.ideal_bytes_per_second > 0 ? turn.ideal_bytes_per_second : ideal_of(turn.job),
                       .weight = turn.weight,
                       .remaining_epochs = turn.epochs,
                       .time_share = turn.time_share};
        for (const auto& [name, gpus] : turn.ran_on) {
            const auto node = node_at.find(name);
            if (node == node_at.end()) continue;
            job.last_placement.push_back({node->second, gpus});
            job.gpus += gpus;
        }
        if (!job.last_placement.empty()) waiting.push_back(std::move(job));
    }
    std::ranges::move(waiting, std::back_inserter(state.jobs));
}

double Cluster::pinned_bytes(const ClusterState& state, const ClusterDataset& dataset, std::uint64_t pin) {
    std::set<std::uint32_t> groups;
    for (const NodeCache& quota : dataset.quotas) groups.insert(state.nodes[quota.node].peer_group);
    return std::min(static_cast<double>(pin),
                    static_cast<double>(dataset.size_bytes) * static_cast<double>(groups.size()));
}

// A lease gives each job at least its floor on each of its nodes, whatever the plan says. So the plan must not give
// that bandwidth to other jobs. If the remote is too slow for all floors, leases shrink the floors in the same way.
void Cluster::count_lease_floors(ClusterState& state) const {
    std::vector<bool> takes_leases;
    takes_leases.reserve(state.nodes.size());
    for (const ClusterNode& node : state.nodes) takes_leases.push_back(nodes_.find(node.name)->second.last.rates);
    const auto leased_nodes = [&](const ClusterJob& job) {
        return std::ranges::count_if(job.placement, [&](const GpuShare& share) { return takes_leases[share.node]; });
    };
    constexpr double kAllButRounding = 1 - 1e-9;  // the floors' sum must not exceed the remote
    double left = kAllButRounding * options_.remote_bytes_per_second;
    double floors = 0;
    for (const ClusterJob& job : state.jobs) {
        left -= job.bandwidth_floor_bytes_per_second;
        floors += static_cast<double>(leased_nodes(job));
    }
    if (floors == 0) return;
    const double floor = std::min(options_.floor_bytes_per_second, std::max(0.0, left) / floors);
    for (ClusterJob& job : state.jobs) {
        const double leased =
            std::min(floor * static_cast<double>(leased_nodes(job)), job.bandwidth_cap_bytes_per_second);
        job.bandwidth_floor_bytes_per_second = std::max(job.bandwidth_floor_bytes_per_second, leased);
    }
}

ClusterState Cluster::state(std::int64_t now_ns) const {
    ClusterState state{.remote_bytes_per_second = options_.remote_bytes_per_second,
                       .horizon_s = static_cast<double>(options_.lease_ns) * 1e-9};
    std::map<std::string_view, std::uint32_t> dataset_at;
    std::map<std::string_view, std::uint32_t> job_at;
    std::map<std::string_view, std::uint32_t> group_at;  // number of the group's first node
    double capacity = 0;
    for (const auto& [name, known] : nodes_) {
        if (!is_alive(known, now_ns)) continue;
        const NodeReport& report = known.last;
        const auto node = static_cast<std::uint32_t>(state.nodes.size());
        std::uint64_t gpus = 0;  // a saved report may predate the limit on ranks
        for (const JobReport& job : report.jobs) gpus += job.ranks;
        gpus = std::clamp<std::uint64_t>(gpus, report.gpus, std::numeric_limits<std::uint32_t>::max());
        state.nodes.push_back(
            {.name = name,
             .gpus = static_cast<std::uint32_t>(gpus),
             .memory_bytes = report.memory_bytes,
             .disk_bytes = report.disk_bytes,
             .disk_read_bytes_per_second = report.disk_read_bytes_per_second,
             .nic_bytes_per_second = report.nic_bytes_per_second,
             .peer_group = report.peer_group.empty() ? node : group_at.emplace(report.peer_group, node).first->second});
        capacity += static_cast<double>(report.memory_bytes) + static_cast<double>(report.disk_bytes);
        NodeCache unheld{.node = node, .memory_bytes = report.memory_bytes, .disk_bytes = report.disk_bytes};
        for (const DatasetReport& reported : report.datasets) {
            const auto [found, added] =
                dataset_at.emplace(reported.name, static_cast<std::uint32_t>(state.datasets.size()));
            if (added) state.datasets.push_back({.name = reported.name});
            ClusterDataset& dataset = state.datasets[found->second];
            // Nodes may have different versions for a while; the largest one must fit.
            dataset.size_bytes = std::max(dataset.size_bytes, reported.size_bytes);
            dataset.quotas.push_back({node, reported.quota_memory_bytes, reported.quota_disk_bytes});
            dataset.cached.push_back({node, reported.cached_memory_bytes, reported.cached_disk_bytes});
            if (!reported.quota_held) continue;
            // A node may briefly report more than it has.
            const NodeCache held{node, std::min(reported.quota_memory_bytes, unheld.memory_bytes),
                                 std::min(reported.quota_disk_bytes, unheld.disk_bytes)};
            dataset.held.push_back(held);
            unheld.memory_bytes -= held.memory_bytes;
            unheld.disk_bytes -= held.disk_bytes;
            capacity -= static_cast<double>(held.bytes());
        }
        for (const JobReport& reported : report.jobs) {
            const auto [found, added] = job_at.emplace(reported.name, static_cast<std::uint32_t>(state.jobs.size()));
            if (added) {
                ClusterJob job{.name = reported.name,
                               .dataset = dataset_at.at(reported.dataset),
                               .ideal_bytes_per_second = ideal_of(reported.name)};
                const auto known_job = jobs_.find(reported.name);
                if (known_job != jobs_.end() && known_job->second.spec) {
                    const JobRegistration& spec = *known_job->second.spec;
                    job.weight = spec.weight;
                    job.remaining_epochs = remaining_epochs(reported.name);
                    job.bandwidth_floor_bytes_per_second = spec.bandwidth_floor_bytes_per_second;
                    job.bandwidth_cap_bytes_per_second = spec.bandwidth_cap_bytes_per_second;
                }
                state.jobs.push_back(job);
            }
            ClusterJob& job = state.jobs[found->second];
            job.gpus += reported.ranks;
            job.placement.push_back({node, reported.ranks});
            job.unread_bytes += reported.unread_bytes;
            job.unread_cached_bytes += reported.unread_cached_bytes;
        }
    }
    count_lease_floors(state);
    add_turns(state);
    for (ClusterDataset& dataset : state.datasets) {
        const auto pin = pins_.find(dataset.name);
        if (pin == pins_.end()) continue;
        dataset.quota_cap_bytes = pin->second;
        // After nodes have gone, the pins may no longer fit. A pin that does not fit is a target (a cap), not a floor.
        const double bytes = pinned_bytes(state, dataset, pin->second);
        dataset.quota_floor_bytes = bytes <= capacity ? pin->second : 0;
        capacity -= bytes <= capacity ? bytes : 0;
    }
    return state;
}

}  // namespace larder::allocator
