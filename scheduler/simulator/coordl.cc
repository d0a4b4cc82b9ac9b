// From CoorDL (VLDB '21): the MinIO cache of each node, which fills and is never evicted, partitioned over the nodes of
// a job, and coordinated preparation: jobs of one dataset on one node share a cache, and fetch each sample once. Left
// out: the time of the preparation itself, and the pace and the staging memory of coordinated jobs: a slower job need
// not keep up with the one that fetches. Each of these omissions is in CoorDL's favour.

#include <algorithm>
#include <vector>

#include "scheduler/simulator/rule_based_cache.h"

namespace larder::scheduler {
namespace {

// MinIO alone: the part of a job is that of its GPUs.
class StaticPerJob final : public RuleBasedCache {
public:
    using RuleBasedCache::RuleBasedCache;
    bool has_store_per_job() const override { return true; }

private:
    void set_quotas(const ReadersState& state) override {
        for (Store* store : state.stores) store->quota_bytes = 0;
        for (std::size_t i = 0; i < state.readers.size(); ++i) {
            Store& store = *state.stores[state.readers[i]->store];
            const double part = static_cast<double>(state.gpus[i]) / std::max(1U, state.gpus_all);
            store.quota_bytes = std::min(store.size_bytes, state.storage.cache_bytes * part);
        }
    }
};

// The cache of a node goes to the jobs that run there, first come, first served: what is cached stays, and the room
// that is left is for all of them, by their GPUs.
class CoorDl final : public RuleBasedCache {
public:
    using RuleBasedCache::RuleBasedCache;
    bool has_store_per_job() const override { return true; }
    bool shares_stores_on_node() const override { return true; }

private:
    // The part of a store that lies on one node.
    struct Part {
        Store* store = nullptr;
        std::uint32_t node = 0;
        double fraction = 0;
        double gpus = 0;
    };

    void set_quotas(const ReadersState& state) override {
        find_parts(state);
        std::vector<double> room(state.nodes.size(),
                                 state.storage.cache_bytes / static_cast<double>(state.nodes.size()));
        for (Store* store : state.stores) store->quota_bytes = store->cached_bytes;
        for (const Part& part : parts_) room[part.node] -= part.store->cached_bytes * part.fraction;
        // Each round gives the room that full stores leave to the others.
        constexpr int kRounds = 4;
        for (int round = 0; round < kRounds; ++round) give(state, room);
    }

    void find_parts(const ReadersState& state) {
        parts_.clear();
        for (std::size_t i = 0; i < state.readers.size(); ++i) {
            SimulatedReader& reader = *state.readers[i];
            Store* const store = state.stores[reader.store];
            reader.shares_fetches = store->readers.size() > 1;
            const double gpus = gpu_count(*state.placements[i]);
            for (const NodeGpus& share : *state.placements[i]) {
                const auto known = std::ranges::find_if(
                    parts_, [&](const Part& part) { return part.store == store && part.node == share.node; });
                if (known != parts_.end()) {
                    known->gpus += share.count();
                    continue;
                }
                parts_.push_back({.store = store,
                                  .node = share.node,
                                  .fraction = share.count() / gpus,
                                  .gpus = 1.0 * share.count()});
            }
        }
    }

    void give(const ReadersState& state, std::vector<double>& room) {
        std::vector<double> gpus(state.nodes.size());
        std::vector<double> given(state.stores.size(), kNever);
        for (const Part& part : parts_) {
            if (part.store->quota_bytes < part.store->size_bytes) gpus[part.node] += part.gpus;
        }
        for (const Part& part : parts_) {
            double& bytes = given[part.store->index];
            bytes = std::min(bytes, part.store->size_bytes - part.store->quota_bytes);
            if (!(bytes > 0)) continue;
            const double share = std::max(0.0, room[part.node]) * part.gpus / gpus[part.node];
            bytes = std::min(bytes, share / part.fraction);
        }
        for (const Part& part : parts_) room[part.node] -= given[part.store->index] * part.fraction;
        for (Store* store : state.stores) {
            if (given[store->index] < kNever) store->quota_bytes += given[store->index];
        }
    }

    std::vector<Part> parts_;
};

}  // namespace

std::unique_ptr<CacheSystem> make_static_per_job(const CacheOptions& options) {
    return std::make_unique<StaticPerJob>(options.bandwidth);
}

std::unique_ptr<CacheSystem> make_coordl(const CacheOptions& options) {
    return std::make_unique<CoorDl>(options.bandwidth);
}

}  // namespace larder::scheduler
