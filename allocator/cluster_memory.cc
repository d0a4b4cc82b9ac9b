// The records that a Cluster hands out to be saved, and takes up again after a restart.

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "allocator/cluster.h"

namespace larder::allocator {

// Returns the quotas that each node of the plan is told, 0 included.
Cluster::Quotas Cluster::quotas() const {
    std::vector<std::vector<DatasetQuota>> by_node(planned_state_.nodes.size());
    for (std::size_t i = 0; i < plan_.datasets.size(); ++i) {
        const std::string& name = planned_state_.datasets[i].name;
        for (const NodeCache& quota : planned_state_.datasets[i].quotas) by_node[quota.node].push_back({.name = name});
        for (const NodeCache& given : plan_.datasets[i].quotas) {
            auto& node_quotas = by_node[given.node];
            if (node_quotas.empty() || node_quotas.back().name != name) node_quotas.push_back({.name = name});
            node_quotas.back().memory_bytes = given.memory_bytes;
            node_quotas.back().disk_bytes = given.disk_bytes;
        }
    }
    Quotas quotas;
    for (std::size_t n = 0; n < by_node.size(); ++n) quotas[planned_state_.nodes[n].name] = std::move(by_node[n]);
    return quotas;
}

Result<void> Cluster::save_plan(bool same_quotas) {
    if (!save_) return {};
    ClusterRecord change{.plan_number = plan_number_};
    if (same_quotas) return save(std::move(change));
    Quotas now = quotas();
    for (const auto& [node, node_quotas] : now) {
        const auto saved = saved_quotas_.find(node);
        if (saved == saved_quotas_.end() || saved->second != node_quotas) change.quotas[node] = node_quotas;
    }
    for (const auto& [node, node_quotas] : saved_quotas_) {
        if (!now.contains(node)) change.quotas[node] = std::nullopt;
    }
    if (auto saved = save(std::move(change)); !saved) return saved;
    saved_quotas_ = std::move(now);
    return {};
}

Result<void> Cluster::save(ClusterRecord change) {
    if (!save_) return {};
    for (const std::string& node : unsaved_nodes_) {
        const auto found = nodes_.find(node);
        change.nodes[node] = found == nodes_.end() ? std::nullopt : std::optional(found->second.last);
    }
    for (const std::string& job : unsaved_jobs_) {
        const auto measured = measured_ideal(job);
        if (measured || !jobs_.contains(job)) change.ideal_bytes_per_second[job] = measured;
    }
    for (const std::string& job : unsaved_epochs_) change.epochs[job] = jobs_.at(job).epochs;
    if (auto saved = save_(change); !saved) return saved;
    unsaved_epochs_.clear();
    unsaved_nodes_.clear();
    unsaved_jobs_.clear();
    return {};
}

Result<void> Cluster::remove_node(const std::string& node, std::int64_t now_ns) {
    const auto found = nodes_.find(node);
    const std::vector<Lease> held = ledger_.held(node);
    if (found == nodes_.end() && held.empty()) {
        return fail(ErrorCode::not_found, "node \"" + node + "\" is unknown");
    }
    const auto runs = [now_ns](const Lease& lease) { return lease.expires_ns > now_ns; };
    if ((found != nodes_.end() && is_alive(found->second, now_ns)) || std::ranges::any_of(held, runs)) {
        return fail(
            ErrorCode::changed,
            "node \"" + node + "\" reports, or has a lease: stop its daemon and wait until its lease has expired");
    }
    if (auto saved = save({.nodes = {{node, std::nullopt}}, .leases = {{node, std::nullopt}}}); !saved) return saved;
    if (found != nodes_.end()) forget_node(found);
    ledger_.remove(node);
    return {};
}

// Forgets the node; its leases stay in the ledger.
void Cluster::forget_node(std::map<std::string, KnownNode>::const_iterator node) {
    unsaved_nodes_.insert(node->first);
    for (const JobReport& job : node->second.last.jobs) job_left_node(job.name, node->first);
    nodes_.erase(node);
}

bool Cluster::forget_a_silent_node(std::int64_t now_ns) {
    const auto heard = [](const auto& entry) { return entry.second.heard_ns; };
    const auto longest = std::ranges::min_element(nodes_, {}, heard);
    if (longest == nodes_.end() || is_alive(longest->second, now_ns)) return false;
    forget_node(longest);
    return true;
}

Result<void> Cluster::restore(const ClusterRecord& record, std::int64_t now_ns) {
    for (const auto& [name, spec] : record.jobs) {
        if (spec) set_spec(jobs_[name], spec);
    }
    for (const auto& [name, report] : record.nodes) {
        if (!report) continue;
        for (const JobReport& job : report->jobs)
            jobs_[job.name].last_counters[name] = {.epoch = job.epoch, .comparable = false};
    }
    for (const auto& [name, seen] : record.epochs) {
        const auto found = jobs_.find(name);
        if (found != jobs_.end() && found->second.spec) found->second.epochs = seen;
    }
    for (const auto& [name, rate] : record.ideal_bytes_per_second) {
        // A measured rate is dropped if its job is neither registered nor running.
        if (rate && jobs_.contains(name)) {
            jobs_[name].ideal.resume(*rate);
        } else {
            unsaved_jobs_.insert(name);
        }
    }
    for (const auto& [dataset, bytes] : record.pins) {
        if (bytes) pins_[dataset] = *bytes;
    }
    if (record.remote && record.remote->configured_bytes_per_second == configured_.remote_bytes_per_second) {
        options_.remote_bytes_per_second = record.remote->bytes_per_second;
        ledger_.set_remote(options_.remote_bytes_per_second);
    }
    for (const auto& [node, leases] : record.leases) {
        if (leases) ledger_.restore(node, *leases);
    }
    if (record.no_lease_before_ns) ledger_.wait_until(*record.no_lease_before_ns);
    // The allocator was unreachable, not the nodes. So nodes of the plan get nearly a whole lease to report, but a
    // daemon that was restarted meanwhile need not wait for its name.
    const std::int64_t heard_ns = now_ns - std::min(options_.same_name_after_ns, options_.lease_ns / 2);
    for (const auto& [name, report] : record.nodes) {
        if (!report) continue;
        const bool planned = record.quotas.contains(name);
        nodes_[name] = {.last = *report, .heard_ns = planned ? heard_ns : now_ns - options_.lease_ns};
    }
    if (!record.plan_number) return {};
    plan_number_ = *record.plan_number;
    ClusterState restored = state(now_ns);
    auto plan = assign(restored, options_.objective);
    if (!plan) return std::unexpected(plan.error().within("the stored cluster"));
    take_plan(std::move(restored), std::move(*plan));
    // If the saved quotas no longer fit the known nodes and datasets, this is a new plan.
    if (!take_quotas(record)) ++plan_number_;
    return {};
}

// Puts the saved quotas into the plan. Returns false if they are for other nodes or datasets.
bool Cluster::take_quotas(const ClusterRecord& record) {
    for (const auto& [node, node_quotas] : record.quotas) {
        if (node_quotas) saved_quotas_[node] = *node_quotas;
    }
    const Quotas planned = quotas();
    const auto same_names = [](const auto& a, const auto& b) {
        return a.first == b.first &&
               std::ranges::equal(a.second, b.second, {}, &DatasetQuota::name, &DatasetQuota::name);
    };
    if (!std::ranges::equal(planned, saved_quotas_, same_names)) return false;
    std::map<std::string_view, std::size_t> dataset_at;
    for (std::size_t i = 0; i < plan_.datasets.size(); ++i) {
        dataset_at[planned_state_.datasets[i].name] = i;
        plan_.datasets[i] = {};
    }
    for (std::uint32_t node = 0; node < planned_state_.nodes.size(); ++node) {
        for (const DatasetQuota& quota : saved_quotas_.at(planned_state_.nodes[node].name)) {
            const NodeCache cache{node, quota.memory_bytes, quota.disk_bytes};
            if (cache.bytes() == 0) continue;
            DatasetPlan& dataset = plan_.datasets[dataset_at.at(quota.name)];
            dataset.quotas.push_back(cache);
            dataset.quota_bytes += cache.bytes();
        }
    }
    return true;
}

}  // namespace larder::allocator
