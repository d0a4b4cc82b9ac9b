#include "allocator/service/view.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <unordered_map>

namespace larder::allocator {
namespace {

std::vector<NodeView> nodes_of(const Cluster& cluster, const Observed& observed, std::int64_t now_ns) {
    std::map<std::string, TierBytes> quotas;
    const ClusterState& state = cluster.planned_state();
    for (const DatasetPlan& dataset : cluster.plan().datasets) {
        for (const NodeCache& quota : dataset.quotas) {
            TierBytes& sum = quotas[state.nodes[quota.node].name];
            sum.memory_bytes += quota.memory_bytes;
            sum.disk_bytes += quota.disk_bytes;
        }
    }
    std::vector<NodeView> nodes;
    for (const auto& [name, known] : cluster.nodes()) {
        const NodeReport& report = known.last;
        NodeView node{.name = name,
                      .alive = cluster.is_alive(known, now_ns),
                      .heard_ago_ns = now_ns - known.heard_ns,
                      .gpus = report.gpus,
                      .capacity = {report.memory_bytes, report.disk_bytes},
                      .quota = quotas[name],
                      .disk_read_bytes_per_second = report.disk_read_bytes_per_second,
                      .nic_bytes_per_second = report.nic_bytes_per_second,
                      .peer_group = report.peer_group,
                      .lease_applied = report.lease_applied,
                      .lease = observed.lease_of(name)};
        for (const DatasetReport& dataset : report.datasets) {
            node.used.memory_bytes += dataset.cached_memory_bytes;
            node.used.disk_bytes += dataset.cached_disk_bytes;
        }
        for (const JobReport& job : report.jobs) node.jobs.push_back(job.name);
        if (node.lease) node.lease_age_ns = now_ns - node.lease->granted_ns;
        nodes.push_back(std::move(node));
    }
    return nodes;
}

JobView running_job(const Cluster& cluster, std::size_t index) {
    const ClusterState& state = cluster.planned_state();
    const ClusterJob& job = state.jobs[index];
    JobView view{.name = job.name,
                 .running = true,
                 .dataset = state.datasets[job.dataset].name,
                 .ranks = job.gpus,
                 .weight = job.weight,
                 .remaining_epochs = job.remaining_epochs,
                 .bandwidth_floor_bytes_per_second = job.bandwidth_floor_bytes_per_second,
                 .bandwidth_cap_bytes_per_second = job.bandwidth_cap_bytes_per_second,
                 .ideal_bytes_per_second = job.ideal_bytes_per_second,
                 .unread_bytes = job.unread_bytes,
                 .unread_cached_bytes = job.unread_cached_bytes,
                 .plan = cluster.plan().jobs[index]};
    for (const GpuShare& share : placement_of(state, cluster.plan(), index))
        view.nodes.push_back(state.nodes[share.node].name);
    return view;
}

JobView waiting_job(const Cluster& cluster, const JobRegistration& spec) {
    return {.name = spec.name,
            .dataset = spec.dataset,
            .weight = spec.weight,
            .remaining_epochs = cluster.remaining_epochs(spec.name),
            .bandwidth_cap_bytes_per_second = spec.bandwidth_cap_bytes_per_second};
}

std::vector<JobView> jobs_of(const Cluster& cluster, const Observed& observed, const JobHistory& history,
                             std::int64_t now_ns) {
    const std::map<std::string, JobRate> rates = observed.job_rates(now_ns);
    std::map<std::string, JobView> by_name;
    for (std::size_t j = 0; j < cluster.planned_state().jobs.size(); ++j) {
        if (!cluster.plan().jobs[j].running) continue;
        JobView view = running_job(cluster, j);
        if (const auto rate = rates.find(view.name); rate != rates.end()) view.measured = rate->second;
        if (const JobLimit* limit = history.limit_of(view.name)) view.limit = *limit;
        by_name.emplace(view.name, std::move(view));
    }
    for (const std::string& name : cluster.registered_jobs()) {
        by_name.try_emplace(name, waiting_job(cluster, *cluster.registered(name)));
    }
    std::vector<JobView> jobs;
    for (auto& [name, view] : by_name) {
        const JobRegistration* spec = cluster.registered(name);
        view.user = cluster.user_of(name);
        view.registered = spec != nullptr;
        if (spec != nullptr) {
            view.declared_ideal_bytes_per_second = spec->ideal_bytes_per_second;
            // The plan's floor may be higher: it counts the floors of the leases, too.
            view.bandwidth_floor_bytes_per_second = spec->bandwidth_floor_bytes_per_second;
            view.cache_bytes = spec->cache_bytes;
            view.staged = spec->cache_bytes > 0 && cluster.is_staged(*spec);
        }
        view.measured_ideal_bytes_per_second = cluster.measured_ideal(name);
        jobs.push_back(std::move(view));
    }
    return jobs;
}

DatasetView dataset_view(const Cluster& cluster, std::size_t index) {
    const ClusterState& state = cluster.planned_state();
    const ClusterDataset& dataset = state.datasets[index];
    const DatasetPlan& plan = cluster.plan().datasets[index];
    DatasetView view{.name = dataset.name, .size_bytes = dataset.size_bytes, .quota_bytes = plan.quota_bytes};
    std::map<std::uint32_t, DatasetShare> shares;
    for (const NodeCache& quota : plan.quotas) {
        shares[quota.node].quota = {quota.memory_bytes, quota.disk_bytes};
    }
    for (const NodeCache& cached : dataset.cached) {
        shares[cached.node].cached = {cached.memory_bytes, cached.disk_bytes};
        view.cached_bytes += cached.bytes();
    }
    for (auto& [node, share] : shares) {
        share.node = state.nodes[node].name;
        view.nodes.push_back(std::move(share));
    }
    if (const auto pin = cluster.pins().find(dataset.name); pin != cluster.pins().end())
        view.pinned_bytes = pin->second;
    return view;
}

std::vector<DatasetView> datasets_of(const Cluster& cluster, std::int64_t now_ns) {
    const ClusterState& state = cluster.planned_state();
    std::vector<DatasetView> datasets;
    datasets.reserve(state.datasets.size());
    for (std::size_t i = 0; i < state.datasets.size(); ++i) datasets.push_back(dataset_view(cluster, i));
    std::unordered_map<std::string_view, std::uint64_t> applied;
    for (const auto& [name, known] : cluster.nodes()) {
        if (!cluster.is_alive(known, now_ns)) continue;
        for (const DatasetReport& dataset : known.last.datasets) {
            applied[dataset.name] += dataset.quota_memory_bytes + dataset.quota_disk_bytes;
        }
    }
    for (DatasetView& dataset : datasets) dataset.applied_bytes = applied[dataset.name];
    std::vector<double> hit_ratios(datasets.size());
    for (std::size_t j = 0; j < state.jobs.size(); ++j) {
        if (!cluster.plan().jobs[j].running) continue;
        DatasetView& dataset = datasets[state.jobs[j].dataset];
        dataset.jobs.push_back(state.jobs[j].name);
        dataset.granted_bytes_per_second += cluster.plan().jobs[j].bandwidth_bytes_per_second;
        hit_ratios[state.jobs[j].dataset] += cluster.plan().jobs[j].hit_ratio;
    }
    for (std::size_t i = 0; i < datasets.size(); ++i) {
        DatasetView& dataset = datasets[i];
        const double jobs = static_cast<double>(dataset.jobs.size());
        dataset.effective_bytes =
            dataset.jobs.empty()
                ? dataset.cached_bytes
                : static_cast<std::uint64_t>(hit_ratios[i] / jobs * static_cast<double>(dataset.size_bytes));
    }
    std::ranges::sort(datasets, {}, &DatasetView::name);
    return datasets;
}

}  // namespace

std::optional<double> JobView::prediction_error() const {
    if (!measured || !(plan.predicted_bytes_per_second > 0)) return std::nullopt;
    return measured->bytes_per_second / plan.predicted_bytes_per_second - 1;
}

ClusterView view_of(const Cluster& cluster, const Observed& observed, const JobHistory& history, std::int64_t now_ns) {
    return {.plan = cluster.plan_number(),
            .nodes = nodes_of(cluster, observed, now_ns),
            .datasets = datasets_of(cluster, now_ns),
            .jobs = jobs_of(cluster, observed, history, now_ns)};
}

}  // namespace larder::allocator
