#include <algorithm>
#include <cmath>
#include <string>

#include "allocator/model.h"
#include "scheduler/simulator/cache_system.h"

namespace larder::scheduler {
namespace {

// Larder's own plan, made by the function that the daemon calls. The nodes count as one peer group with one pool of
// cache, which holds if networks between nodes are not the bottleneck.
class Uniform final : public CacheSystem {
public:
    explicit Uniform(const CacheOptions& options) : options_(options) {
        objective_.kind = options.objective;
        objective_.spare_room = true;
        objective_.place_jobs = false;
    }

    Result<void> plan(const ReadersState& state) override {
        describe(state);
        const auto plan = allocator::assign(cluster_, objective_);
        if (!plan) return std::unexpected(plan.error());
        for (std::size_t s = 0; s < state.stores.size(); ++s) {
            Store& store = *state.stores[s];
            store.quota_bytes = std::min(store.size_bytes, static_cast<double>(plan->datasets[s].quota_bytes));
            cut_to_quota(store);
        }
        for (std::size_t i = 0; i < state.readers.size(); ++i) {
            SimulatedReader& reader = *state.readers[i];
            reader.hit_ratio = rest_hit_ratio(reader);
            reader.bandwidth = plan->jobs[i].bandwidth_bytes_per_second;
            reader.rate = allocator::predicted_rate(reader.ideal, reader.bandwidth, reader.hit_ratio);
        }
        if (options_.bandwidth != BandwidthKind::joint) {
            share_bandwidth(options_.bandwidth, state.readers, state.storage.remote_bytes_per_second);
        }
        return {};
    }

private:
    static std::uint64_t bytes(double value) { return static_cast<std::uint64_t>(std::max(0.0, value)); }

    void describe(const ReadersState& state) {
        cluster_.remote_bytes_per_second = state.storage.remote_bytes_per_second;
        // Twice the GPUs: a policy may pack two jobs onto the same GPUs.
        cluster_.nodes.resize(1);
        cluster_.nodes[0].name = "all";
        cluster_.nodes[0].gpus = 2 * state.gpus_all;
        cluster_.nodes[0].disk_bytes = bytes(state.storage.cache_bytes);
        cluster_.datasets.resize(state.stores.size());
        for (std::uint32_t s = 0; s < state.stores.size(); ++s) {
            const Store& store = *state.stores[s];
            allocator::ClusterDataset& dataset = cluster_.datasets[s];
            dataset.name = std::to_string(store.dataset);
            dataset.size_bytes = bytes(store.size_bytes);
            dataset.quotas.assign(1, {.node = 0, .disk_bytes = bytes(store.quota_bytes)});
            dataset.cached.assign(1, {.node = 0, .disk_bytes = bytes(store.cached_bytes)});
        }
        cluster_.jobs.resize(state.readers.size() + state.waiting.size());
        for (std::size_t i = 0; i < state.readers.size(); ++i) {
            const SimulatedReader& reader = *state.readers[i];
            allocator::ClusterJob& job = cluster_.jobs[i];
            describe(reader, state, job);
            job.gpus = state.gpus[i];
            // The last few bytes of an epoch would round the hit ratio too coarsely.
            const double unread_min = std::min(1e9, state.stores[reader.store]->size_bytes);
            job.unread_bytes = reader.unread_bytes > 0 ? bytes(std::max(unread_min, reader.unread_bytes)) : 0;
            job.unread_cached_bytes =
                std::min(job.unread_bytes, bytes(rest_hit_ratio(reader) * static_cast<double>(job.unread_bytes)));
            job.time_share = state.time_shares[i];
            job.placement.assign(1, {.node = 0, .gpus = state.gpus[i]});
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
            job.last_placement.assign(1, {.node = 0, .gpus = waiting.gpus});
        }
    }

    static void describe(const SimulatedReader& reader, const ReadersState& state, allocator::ClusterJob& job) {
        job.name = std::to_string(reader.job);
        job.dataset = reader.store;
        job.ideal_bytes_per_second = told_ideal(reader);
        const double size = state.stores[reader.store]->size_bytes;
        job.remaining_epochs = !state.epochs_known ? allocator::kUnlimited
                               : reader.remaining_bytes <= reader.unread_bytes
                                   ? 1
                                   : 1 + (reader.remaining_bytes - reader.unread_bytes) / size;
        job.weight = reader.weight;
    }

    CacheOptions options_;
    allocator::Objective objective_;
    allocator::ClusterState cluster_;
};

}  // namespace

std::unique_ptr<CacheSystem> make_uniform(const CacheOptions& options) {
    return std::make_unique<Uniform>(options);
}

}  // namespace larder::scheduler
