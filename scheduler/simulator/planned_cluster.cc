#include "scheduler/simulator/planned_cluster.h"

#include <algorithm>
#include <string>

namespace larder::scheduler {
namespace {

std::uint64_t whole_bytes(double value) {
    return static_cast<std::uint64_t>(std::max(0.0, value));
}

allocator::GpuShares shares_of(const Placement& placement) {
    allocator::GpuShares shares;
    shares.reserve(placement.size());
    for (const NodeGpus& share : placement) shares.push_back({.node = share.node, .gpus = share.count()});
    return shares;
}

}  // namespace

void PlannedCluster::describe(const ReadersState& readers, bool own_caches) {
    describe_nodes(readers, own_caches);
    describe_datasets(readers);
    describe_jobs(readers);
}

void PlannedCluster::describe_nodes(const ReadersState& readers, bool own_caches) {
    state.remote_bytes_per_second = readers.storage.remote_bytes_per_second;
    state.nodes.resize(readers.nodes.size());
    for (std::uint32_t n = 0; n < readers.nodes.size(); ++n) {
        allocator::ClusterNode& node = state.nodes[n];
        node.name = readers.nodes[n].name;
        node.gpus = 2 * readers.nodes[n].gpus;  // a policy may pack two jobs onto the same GPUs
        node.disk_bytes = whole_bytes(readers.storage.cache_bytes / static_cast<double>(readers.nodes.size()));
        node.disk_read_bytes_per_second = readers.node_disk_bytes_per_second;
        node.nic_bytes_per_second = readers.node_nic_bytes_per_second;
        node.peer_group = own_caches ? n : 0;
    }
}

void PlannedCluster::describe_datasets(const ReadersState& readers) {
    state.datasets.clear();
    dataset_at.clear();
    const auto nodes = static_cast<double>(readers.nodes.size());
    for (const Store* store : readers.stores) {
        const auto [at, added] = dataset_at.emplace(store->dataset, static_cast<std::uint32_t>(state.datasets.size()));
        if (added) {
            state.datasets.push_back(
                {.name = std::to_string(store->dataset), .size_bytes = whole_bytes(store->size_bytes)});
        }
        allocator::ClusterDataset& dataset = state.datasets[at->second];
        if (store->node != kAllNodes) {
            dataset.quotas.push_back({.node = store->node, .disk_bytes = whole_bytes(store->quota_bytes)});
            dataset.cached.push_back({.node = store->node, .disk_bytes = whole_bytes(store->cached_bytes)});
            continue;
        }
        for (std::uint32_t n = 0; n < readers.nodes.size(); ++n) {
            dataset.quotas.push_back({.node = n, .disk_bytes = whole_bytes(store->quota_bytes / nodes)});
            dataset.cached.push_back({.node = n, .disk_bytes = whole_bytes(store->cached_bytes / nodes)});
        }
    }
    for (allocator::ClusterDataset& dataset : state.datasets) {
        std::ranges::sort(dataset.quotas, {}, &allocator::NodeCache::node);
        std::ranges::sort(dataset.cached, {}, &allocator::NodeCache::node);
    }
}

void PlannedCluster::describe_jobs(const ReadersState& readers) {
    state.jobs.resize(readers.readers.size() + readers.waiting.size());
    for (std::size_t i = 0; i < readers.readers.size(); ++i) {
        const SimulatedReader& reader = *readers.readers[i];
        allocator::ClusterJob& job = state.jobs[i];
        describe(reader, readers, job);
        job.gpus = readers.gpus[i];
        job.unread_bytes = whole_bytes(reader.unread_bytes);
        job.unread_cached_bytes = std::min(job.unread_bytes, whole_bytes(reader.unread_cached_bytes));
        job.time_share = readers.time_shares[i];
        job.placement = shares_of(*readers.placements[i]);
        job.last_placement.clear();
    }
    for (std::size_t i = 0; i < readers.waiting.size(); ++i) {
        const WaitingReader& waiting = readers.waiting[i];
        allocator::ClusterJob& job = state.jobs[readers.readers.size() + i];
        describe(*waiting.reader, readers, job);
        job.gpus = waiting.gpus;
        job.unread_bytes = job.unread_cached_bytes = 0;
        job.time_share = waiting.time_share;
        job.placement.clear();
        job.last_placement = shares_of(*waiting.placement);
    }
}

void PlannedCluster::describe(const SimulatedReader& reader, const ReadersState& readers,
                              allocator::ClusterJob& job) const {
    const Store& store = *readers.stores[reader.store];
    job.name = std::to_string(reader.job);
    job.dataset = dataset_at.at(store.dataset);
    job.ideal_bytes_per_second = told_ideal(reader);
    job.remaining_epochs = allocator::kUnlimited;
    if (readers.epochs_known) {
        job.remaining_epochs = 1 + std::max(0.0, reader.remaining_bytes - reader.unread_bytes) / store.size_bytes;
    }
    job.weight = reader.weight;
}

}  // namespace larder::scheduler
