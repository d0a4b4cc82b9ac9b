#include <algorithm>
#include <map>
#include <string>

#include "allocator/model.h"
#include "scheduler/simulator/cache_system.h"

namespace larder::scheduler {
namespace {

std::uint64_t whole_bytes(double value) {
    return static_cast<std::uint64_t>(std::max(0.0, value));
}

// Larder's own plan, made by the function that the daemon calls, for nodes that each cache for themselves. The plan's
// input describes them as the daemon describes nodes that do not read from each other.
class UniformByNode final : public CacheSystem {
public:
    explicit UniformByNode(const CacheOptions& options) : options_(options) {
        objective_.kind = options.objective;
        objective_.spare_room = true;
        objective_.place_jobs = false;
    }

    Result<void> plan(const ReadersState& state) override {
        describe_nodes(state);
        describe_datasets(state);
        describe_jobs(state);
        const auto plan = allocator::assign(cluster_, objective_);
        if (!plan) return std::unexpected(plan.error());
        for (Store* store : state.stores) {
            const auto& quotas = plan->datasets[dataset_at_.at(store->dataset)].quotas;
            const auto quota = std::ranges::find(quotas, store->node, &allocator::NodeCache::node);
            store->quota_bytes =
                quota == quotas.end() ? 0 : std::min(store->size_bytes, static_cast<double>(quota->bytes()));
            cut_to_quota(*store);
        }
        for (std::size_t i = 0; i < state.readers.size(); ++i) {
            SimulatedReader& reader = *state.readers[i];
            reader.hit_ratio = rest_hit_ratio(reader);
            reader.bandwidth = plan->jobs[i].bandwidth_bytes_per_second;
            reader.rate = allocator::predicted_rate(reader.ideal, reader.bandwidth, reader.hit_ratio);
            reader.equal_rate = plan->jobs[i].equal_share_bytes_per_second;
        }
        if (options_.bandwidth != BandwidthKind::joint) {
            share_bandwidth(options_.bandwidth, state.readers, state.storage.remote_bytes_per_second);
        }
        return {};
    }

private:
    void describe_nodes(const ReadersState& state) {
        cluster_.remote_bytes_per_second = state.storage.remote_bytes_per_second;
        cluster_.nodes.resize(state.nodes.size());
        for (std::uint32_t n = 0; n < state.nodes.size(); ++n) {
            allocator::ClusterNode& node = cluster_.nodes[n];
            node.name = state.nodes[n].name;
            node.gpus = 2 * state.nodes[n].gpus;  // a policy may pack two jobs onto the same GPUs
            node.disk_bytes = whole_bytes(state.storage.cache_bytes / static_cast<double>(state.nodes.size()));
            node.disk_read_bytes_per_second = state.node_disk_bytes_per_second;
            node.nic_bytes_per_second = state.node_nic_bytes_per_second;
            node.peer_group = n;
        }
    }

    void describe_datasets(const ReadersState& state) {
        cluster_.datasets.clear();
        dataset_at_.clear();
        for (const Store* store : state.stores) {
            const auto [at, added] =
                dataset_at_.emplace(store->dataset, static_cast<std::uint32_t>(cluster_.datasets.size()));
            if (added) {
                cluster_.datasets.push_back(
                    {.name = std::to_string(store->dataset), .size_bytes = whole_bytes(store->size_bytes)});
            }
            allocator::ClusterDataset& dataset = cluster_.datasets[at->second];
            dataset.quotas.push_back({.node = store->node, .disk_bytes = whole_bytes(store->quota_bytes)});
            dataset.cached.push_back({.node = store->node, .disk_bytes = whole_bytes(store->cached_bytes)});
        }
    }

    void describe_jobs(const ReadersState& state) {
        cluster_.jobs.resize(state.readers.size() + state.waiting.size());
        for (std::size_t i = 0; i < state.readers.size(); ++i) {
            const SimulatedReader& reader = *state.readers[i];
            allocator::ClusterJob& job = cluster_.jobs[i];
            describe(reader, state, job);
            job.gpus = state.gpus[i];
            job.unread_bytes = whole_bytes(reader.unread_bytes);
            job.unread_cached_bytes = std::min(job.unread_bytes, whole_bytes(reader.unread_cached_bytes));
            job.time_share = state.time_shares[i];
            job.placement = shares_of(*state.placements[i]);
            job.last_placement.clear();
        }
        for (std::size_t i = 0; i < state.waiting.size(); ++i) {
            const WaitingReader& waiting = state.waiting[i];
            allocator::ClusterJob& job = cluster_.jobs[state.readers.size() + i];
            describe(*waiting.reader, state, job);
            job.gpus = waiting.gpus;
            job.unread_bytes = job.unread_cached_bytes = 0;
            job.time_share = waiting.time_share;
            job.placement.clear();
            job.last_placement = shares_of(*waiting.placement);
        }
    }

    void describe(const SimulatedReader& reader, const ReadersState& state, allocator::ClusterJob& job) const {
        const Store& store = *state.stores[reader.store];
        job.name = std::to_string(reader.job);
        job.dataset = dataset_at_.at(store.dataset);
        job.ideal_bytes_per_second = reader.ideal;
        job.remaining_epochs = 1 + std::max(0.0, reader.remaining_bytes - reader.unread_bytes) / store.size_bytes;
        job.weight = reader.weight;
    }

    static allocator::GpuShares shares_of(const Placement& placement) {
        allocator::GpuShares shares;
        for (const NodeGpus& share : placement) shares.push_back({.node = share.node, .gpus = share.count()});
        return shares;
    }

    CacheOptions options_;
    allocator::Objective objective_;
    allocator::ClusterState cluster_;
    std::map<std::uint32_t, std::uint32_t> dataset_at_;  // index in cluster_.datasets
};

}  // namespace

std::unique_ptr<CacheSystem> make_uniform_by_node(const CacheOptions& options) {
    return std::make_unique<UniformByNode>(options);
}

}  // namespace larder::scheduler
