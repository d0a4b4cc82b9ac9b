// A node's part of the plan in force: its quotas, and its jobs' and scans' rates under a lease.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "allocator/cluster.h"
#include "allocator/grant_split.h"

namespace larder::allocator {

// Returns 0 for a node that was removed since the plan was made.
double Cluster::demand_of(const std::string& node, const std::string& job) const {
    const auto found = nodes_.find(node);
    if (found == nodes_.end()) return 0;
    const auto& reports = found->second.last.jobs;
    const auto reported = std::ranges::find(reports, job, &JobReport::name);
    return reported == reports.end() ? 0 : reported->demand_bytes_per_second;
}

std::size_t Cluster::scanning_nodes(std::int64_t now_ns) const {
    return static_cast<std::size_t>(std::ranges::count_if(nodes_, [&](const auto& item) {
        return item.second.last.scans > 0 && item.second.last.rates && is_alive(item.second, now_ns);
    }));
}

// A job's grant is the most it may take. While nodes scan, the job leaves them the bandwidth it neither needs nor has
// lately asked for.
double Cluster::grant_beside_scans(std::uint32_t job) const {
    const JobPlan& plan = plan_.jobs[job];
    double demand = 0;
    for (const GpuShare& share : placement_of(planned_state_, plan_, job)) {
        demand += demand_of(planned_state_.nodes[share.node].name, planned_state_.jobs[job].name);
    }
    constexpr double kRoomToGrow = 1.1;
    const double need = plan.predicted_bytes_per_second * (1 - plan.hit_ratio);
    return std::min(plan.bandwidth_bytes_per_second, kRoomToGrow * std::max(need, demand));
}

// Each scanning node gets an equal part of the bandwidth that jobs leave.
double Cluster::rate_for_scans(std::size_t scanning) const {
    double left = options_.remote_bytes_per_second;
    for (std::uint32_t j = 0; j < plan_.jobs.size(); ++j) left -= grant_beside_scans(j);
    return std::max(0.0, left) / static_cast<double>(std::max<std::size_t>(1, scanning));
}

Result<NodePlan> Cluster::plan_for(const std::string& node, std::int64_t now_ns) {
    const auto index = planned_index(node);
    if (!index || !nodes_.contains(node)) {
        return fail(ErrorCode::not_found, "node \"" + node + "\" is not in the plan: it has to report first");
    }
    const std::uint32_t planned_node = *index;
    const bool rates = nodes_.at(node).last.rates;
    if (rates && ledger_.wait_ns(now_ns) > 0) {
        return fail(ErrorCode::unavailable,
                    "rates leased before the allocator's start may still be in force: no lease is granted "
                    "until they have expired");
    }
    NodePlan part{.plan = plan_number_, .quotas = {}, .peers = {}, .lease = {}};
    const std::string& group = nodes_.at(node).last.peer_group;
    for (const auto& [name, known] : nodes_) {
        const NodeReport& last = known.last;
        if (group.empty() || name == node || last.peer_group != group || !is_alive(known, now_ns)) continue;
        part.peers.push_back(last.peer_endpoint);
    }
    // A node that has the dataset must be told of a quota of 0.
    for (const std::uint32_t i : planned_datasets_[planned_node]) {
        const auto quota = std::ranges::find(plan_.datasets[i].quotas, planned_node, &NodeCache::node);
        const bool given = quota != plan_.datasets[i].quotas.end();
        part.quotas.push_back({.name = planned_state_.datasets[i].name,
                               .memory_bytes = given ? quota->memory_bytes : 0,
                               .disk_bytes = given ? quota->disk_bytes : 0});
    }
    if (!rates) return part;
    const std::size_t scanning = scanning_nodes(now_ns);
    std::vector<LeasedRate> wanted;
    for (const std::uint32_t j : planned_jobs_[planned_node]) {
        const JobPlan& job = plan_.jobs[j];
        const std::string& name = planned_state_.jobs[j].name;
        std::vector<double> demands;
        std::size_t own_index = 0;
        for (const GpuShare& share : placement_of(planned_state_, plan_, j)) {
            const std::string& share_node = planned_state_.nodes[share.node].name;
            if (share_node == node) own_index = demands.size();
            demands.push_back(demand_of(share_node, name));
        }
        const double grant = scanning > 0 ? grant_beside_scans(j) : job.bandwidth_bytes_per_second;
        const auto parts = split_grant(grant, demands, options_.floor_bytes_per_second);
        wanted.push_back({.job = name, .bytes_per_second = parts[own_index]});
    }
    if (nodes_.at(node).last.scans > 0) {
        wanted.push_back({.job = kScansJob, .bytes_per_second = rate_for_scans(scanning)});
    }
    part.lease = ledger_.lease(node, std::move(wanted), now_ns);
    // Saved before the lease can be used, so that the lease counts after a restart.
    if (auto saved = save({.leases = {{node, ledger_.held(node)}}}); !saved) {
        ledger_.take_back(node, part.lease.number);
        return std::unexpected(saved.error());
    }
    return part;
}

}  // namespace larder::allocator
