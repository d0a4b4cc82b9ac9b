#include "scheduler/simulator/equal_shares.h"

#include <cmath>
#include <limits>
#include <string>

#include "allocator/problem.h"

namespace larder::scheduler {
namespace {

constexpr std::uint32_t kNotDescribed = std::numeric_limits<std::uint32_t>::max();

std::uint64_t rounded_bytes(double value) {
    return static_cast<std::uint64_t>(std::max(0.0, value));
}

}  // namespace

EqualShares::EqualShares(const SimulationOptions& options, std::span<const DatasetState> datasets, std::size_t nodes)
    : datasets_(datasets),
      by_node_(options.cache.own_caches || std::isfinite(options.node_disk_bytes_per_second) ||
               std::isfinite(options.node_nic_bytes_per_second)),
      index_of_(datasets.size(), kNotDescribed) {
    state_.nodes.resize(by_node_ ? nodes : 1);
    const double cache_bytes = options.storage.cache_bytes / static_cast<double>(state_.nodes.size());
    for (std::uint32_t n = 0; n < state_.nodes.size(); ++n) {
        allocator::ClusterNode& node = state_.nodes[n];
        node.name = std::to_string(n);
        node.disk_bytes = rounded_bytes(cache_bytes);
        node.disk_read_bytes_per_second = options.node_disk_bytes_per_second;
        node.nic_bytes_per_second = options.node_nic_bytes_per_second;
        node.peer_group = options.cache.own_caches ? n : 0;
    }
}

void EqualShares::set(double remote_bytes_per_second, std::span<SimulatedJob* const> running,
                      std::span<SimulatedJob* const> waiting) {
    if (running.empty()) return;
    state_.remote_bytes_per_second = remote_bytes_per_second;
    state_.jobs.clear();
    state_.jobs.reserve(running.size() + waiting.size());
    state_.datasets.clear();
    for (const SimulatedJob* job : running) add(*job, true);
    for (const SimulatedJob* job : waiting) {
        if (!job->reads_nothing()) add(*job, false);
    }
    const allocator::Problem problem = allocator::make_problem(state_);
    for (std::size_t i = 0; i < running.size(); ++i) {
        SimulatedJob& job = *running[i];
        job.reader.equal_rate = problem.equal_rates[problem.terms_of_job[i]];
        index_of_[job.state.spec->dataset] = kNotDescribed;
    }
    for (const SimulatedJob* job : waiting) {
        if (!job->reads_nothing()) index_of_[job->state.spec->dataset] = kNotDescribed;
    }
}

void EqualShares::add(const SimulatedJob& job, bool runs) {
    std::uint32_t& dataset = index_of_[job.state.spec->dataset];
    if (dataset == kNotDescribed) {
        dataset = static_cast<std::uint32_t>(state_.datasets.size());
        state_.datasets.push_back({.name = std::to_string(job.state.spec->dataset),
                                   .size_bytes = rounded_bytes(datasets_[job.state.spec->dataset].size_bytes)});
    }
    allocator::ClusterJob& described = state_.jobs.emplace_back();
    described.name = std::to_string(job.reader.job);
    described.dataset = dataset;
    described.gpus = runs ? job.state.gpus : job.last_gpus;
    described.ideal_bytes_per_second = job.reader.ideal;
    described.weight = job.reader.weight;
    described.time_share = job.state.time_share;
    allocator::GpuShares& shares = runs ? described.placement : described.last_placement;
    const Placement& placement = runs ? job.state.placement : job.last_placement;
    if (!by_node_) {
        shares.push_back({.node = 0, .gpus = described.gpus});
        return;
    }
    shares.reserve(placement.size());
    for (const NodeGpus& share : placement) shares.push_back({.node = share.node, .gpus = share.count()});
}

}  // namespace larder::scheduler
