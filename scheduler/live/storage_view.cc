#include "scheduler/live/storage_view.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

namespace larder::scheduler {

StorageView storage_view(const allocator::Cluster& cluster, std::int64_t now_ns) {
    allocator::ClusterState now = cluster.state(now_ns);
    StorageView view{.storage = {.remote_bytes_per_second = now.remote_bytes_per_second}};
    view.storage.nic_bytes_per_second = now.nodes.empty() ? kNever : 0;
    std::set<std::uint32_t> groups;
    view.nodes.reserve(now.nodes.size());
    for (const allocator::ClusterNode& node : now.nodes) {
        groups.insert(node.peer_group);
        view.nodes.push_back(node.name);
        view.storage.nic_bytes_per_second += node.nic_bytes_per_second;
        view.storage.cache_bytes += static_cast<double>(node.memory_bytes) + static_cast<double>(node.disk_bytes);
    }
    view.storage.own_caches = groups.size() == now.nodes.size();
    std::vector<double> cached_in_group(now.nodes.size());  // numbered by the groups' first nodes
    for (const allocator::ClusterDataset& dataset : now.datasets) {
        DatasetState& state =
            view.datasets.emplace_back(DatasetState{dataset.name, static_cast<double>(dataset.size_bytes)});
        auto& nodes_with_blocks = view.cached_on.emplace_back();
        nodes_with_blocks.reserve(dataset.cached.size());
        for (const allocator::NodeCache& cached : dataset.cached) {
            double& in_group = cached_in_group[now.nodes[cached.node].peer_group];
            in_group += static_cast<double>(cached.bytes());
            state.cached_bytes = std::max(state.cached_bytes, in_group);
            if (cached.bytes() > 0) nodes_with_blocks.push_back({cached.node, cached.bytes()});
        }
        for (const allocator::NodeCache& cached : dataset.cached)
            cached_in_group[now.nodes[cached.node].peer_group] = 0;
    }
    view.jobs.reserve(now.jobs.size());
    for (std::uint32_t j = 0; j < now.jobs.size(); ++j) {
        const allocator::ClusterJob& job = now.jobs[j];
        // Its f* is for the GPUs it had, which may not be those it has now.
        if (job.waits_for_turn()) continue;
        view.jobs[job.name] = {.ideal = job.ideal_bytes_per_second,
                               .ideal_is_measured = job.ideal_is_measured,
                               .unread_bytes = static_cast<double>(job.unread_bytes),
                               .job = j};
    }
    // The plan may be slightly older, with other jobs.
    const allocator::ClusterState& planned = cluster.planned_state();
    for (std::size_t j = 0; j < planned.jobs.size(); ++j) {
        const auto at = view.jobs.find(planned.jobs[j].name);
        if (at == view.jobs.end()) continue;
        const allocator::JobPlan& plan = cluster.plan().jobs[j];
        at->second.predicted = plan.predicted_bytes_per_second;
        at->second.granted = plan.bandwidth_bytes_per_second;
        at->second.hit_ratio = plan.hit_ratio;
    }
    view.state = std::move(now);
    return view;
}

void take_reads(const allocator::Cluster& cluster, JobQueue& queue) {
    boost::unordered_flat_map<std::string_view, JobRecord*> by_name;
    by_name.reserve(queue.holders().size());
    for (JobRecord* const job : queue.holder_records()) {
        if (is_with_engine(job->phase)) by_name[job->asked.name] = job;
    }
    struct Read {
        const allocator::NodeReport* node;
        const allocator::JobReport* report;
        JobRecord* job;
    };
    std::vector<Read> reads;
    reads.reserve(by_name.size());
    for (const auto& [node, known] : cluster.nodes()) {
        for (const allocator::JobReport& report : known.last.jobs) {
            const auto found = by_name.find(report.name);
            if (found == by_name.end()) continue;
            reads.push_back({.node = &known.last, .report = &report, .job = found->second});
        }
    }
    for (std::size_t i = 0; i < reads.size(); ++i) {
        // The records lie anywhere in memory. Without prefetching, the loop would wait for each of them.
        constexpr std::size_t kAhead = 8;
        if (i + 2 * kAhead < reads.size()) __builtin_prefetch(&reads[i + 2 * kAhead].job->counted);
        if (i + kAhead < reads.size()) __builtin_prefetch(reads[i + kAhead].job->counted.begin().get_ptr());
        const auto& [node, report, job] = reads[i];
        CountedBytes& counted = job->counted[node->node];
        // A counter starts at 0 when the daemon starts, and when it has forgotten the job.
        const bool counter_continues = counted.instance == node->instance && report->bytes >= counted.bytes;
        const std::uint64_t more = counter_continues ? report->bytes - counted.bytes : report->bytes;
        counted = {node->instance, report->bytes};
        job->read_bytes += static_cast<double>(more);
    }
}

void begin_reads(const allocator::Cluster& cluster, std::span<JobRecord* const> jobs) {
    if (jobs.empty()) return;
    boost::unordered_flat_map<std::string_view, JobRecord*> by_name;
    for (JobRecord* const job : jobs) by_name.emplace(job->asked.name, job);
    for (const auto& [node, known] : cluster.nodes()) {
        for (const allocator::JobReport& report : known.last.jobs) {
            const auto found = by_name.find(report.name);
            if (found != by_name.end()) found->second->counted[node] = {known.last.instance, report.bytes};
        }
    }
}

}  // namespace larder::scheduler
