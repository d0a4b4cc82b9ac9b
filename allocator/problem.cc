#include "allocator/problem.h"

#include <algorithm>
#include <span>
#include <utility>

#include "allocator/model.h"
#include "base/hash.h"

namespace larder::allocator {
namespace {

// Indices of `things` in an order of their names that is quick to make: by checksum, names only where those are equal.
std::vector<std::uint32_t> in_order(const auto& things) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> keys;
    keys.reserve(things.size());
    for (const auto& thing : things) {
        keys.emplace_back(crc32c(std::as_bytes(std::span(thing.name))), static_cast<std::uint32_t>(keys.size()));
    }
    std::ranges::sort(keys, [&](const auto& a, const auto& b) {
        return a.first != b.first ? a.first < b.first : things[a.second].name < things[b.second].name;
    });
    std::vector<std::uint32_t> order;
    order.reserve(keys.size());
    for (const auto& [checksum, index] : keys) order.push_back(index);
    return order;
}

// The running jobs, dataset by dataset.
std::vector<std::uint32_t> running_jobs(const ClusterState& state, std::span<const std::uint32_t> datasets_in_order) {
    std::vector<std::uint32_t> count(state.datasets.size());
    for (const Job& job : state.jobs) {
        if (!job.placement.empty()) ++count[job.dataset];
    }
    std::vector<std::uint32_t> end(state.datasets.size());
    std::uint32_t next = 0;
    for (const std::uint32_t dataset : datasets_in_order) {
        end[dataset] = next;
        next += count[dataset];
    }
    std::vector<std::uint32_t> running(next);
    for (std::uint32_t i = 0; i < state.jobs.size(); ++i) {
        if (!state.jobs[i].placement.empty()) running[end[state.jobs[i].dataset]++] = i;
    }
    for (const std::uint32_t dataset : datasets_in_order) {
        const auto of_dataset = std::span(running).subspan(end[dataset] - count[dataset], count[dataset]);
        std::ranges::sort(of_dataset, [&](std::uint32_t a, std::uint32_t b) {
            const Job& left = state.jobs[a];
            const Job& right = state.jobs[b];
            return left.ideal_bytes_per_second != right.ideal_bytes_per_second
                       ? left.ideal_bytes_per_second < right.ideal_bytes_per_second
                       : left.name < right.name;
        });
    }
    return running;
}

// Each node's network, shared equally by the jobs on it: all a job reads may have to come over it.
void bound_by_network_share(const ClusterState& state, Problem& problem) {
    std::vector<std::uint32_t> jobs_on_node(state.nodes.size());
    for (const JobTerms& job : problem.jobs) {
        for (const GpuShare& share : state.jobs[job.job].placement) ++jobs_on_node[share.node];
    }
    for (JobTerms& job : problem.jobs) {
        const auto& placement = state.jobs[job.job].placement;
        std::uint32_t gpus = 0;
        for (const GpuShare& share : placement) gpus += share.gpus;
        for (const GpuShare& share : placement) {
            const double part =
                gpus > 0 ? static_cast<double>(share.gpus) / gpus : 1.0 / static_cast<double>(placement.size());
            const double nic = state.nodes[share.node].nic_bytes_per_second / jobs_on_node[share.node];
            if (part > 0) job.equal_rate = std::min(job.equal_rate, nic / part);
        }
    }
}

void share_equally(const ClusterState& state, Problem& problem) {
    if (problem.jobs.empty()) return;
    const auto count = static_cast<double>(problem.jobs.size());
    double cache_left = problem.cache;
    for (const DatasetTerms& dataset : problem.datasets) cache_left -= dataset.floor;
    double remote_left = problem.remote;
    for (const JobTerms& job : problem.jobs) remote_left -= job.bandwidth_floor;
    for (DatasetTerms& dataset : problem.datasets) {
        const double jobs = dataset.jobs_end - dataset.jobs_begin;
        dataset.equal_cache = std::min(dataset.cap, dataset.floor + std::max(0.0, cache_left) * jobs / count);
    }
    for (JobTerms& job : problem.jobs) {
        job.equal_bandwidth = std::min(job.bandwidth_cap, job.bandwidth_floor + std::max(0.0, remote_left) / count);
        const double hits = problem.steady_hit_ratio(job, problem.datasets[job.dataset].equal_cache);
        job.equal_rate = predicted_rate(job.ideal, job.equal_bandwidth, hits);
    }
    bound_by_network_share(state, problem);
}

}  // namespace

double Problem::steady_hit_ratio(const JobTerms& job, double cached_bytes) const {
    return job.gains ? hit_ratio(cached_bytes, datasets[job.dataset].size) : job.effective_hit_ratio;
}

Problem make_problem(const ClusterState& state) {
    Problem problem;
    problem.remote = state.remote_bytes_per_second;
    for (const Node& node : state.nodes) {
        problem.cache += static_cast<double>(node.memory_bytes) + static_cast<double>(node.disk_bytes);
    }
    problem.datasets_in_order = in_order(state.datasets);
    problem.nodes_in_order = in_order(state.nodes);
    problem.datasets.reserve(state.datasets.size());
    for (const Dataset& dataset : state.datasets) {
        DatasetTerms terms{.size = static_cast<double>(dataset.size_bytes)};
        terms.cap = static_cast<double>(std::min(dataset.size_bytes, dataset.quota_cap_bytes));
        terms.floor = std::min(terms.cap, static_cast<double>(dataset.quota_floor_bytes));
        for (const NodeCache& cached : dataset.cached) terms.cached += static_cast<double>(cached.bytes());
        problem.datasets.push_back(terms);
    }

    const std::vector<std::uint32_t> running = running_jobs(state, problem.datasets_in_order);
    problem.jobs.reserve(running.size());
    for (const std::uint32_t index : running) {
        const Job& job = state.jobs[index];
        DatasetTerms& dataset = problem.datasets[job.dataset];
        const auto at = static_cast<std::uint32_t>(problem.jobs.size());
        if (dataset.jobs_begin == dataset.jobs_end) dataset.jobs_begin = at;
        dataset.jobs_end = at + 1;
        problem.jobs.push_back({.job = index,
                                .dataset = job.dataset,
                                .ideal = job.ideal_bytes_per_second,
                                .weight = job.weight,
                                .bandwidth_floor = job.bandwidth_floor_bytes_per_second,
                                .bandwidth_cap = job.bandwidth_cap_bytes_per_second,
                                .effective_hit_ratio = effective_hit_ratio(job, dataset.cached, dataset.size),
                                .gains = job.remaining_epochs > 1});
    }
    share_equally(state, problem);
    return problem;
}

}  // namespace larder::allocator
