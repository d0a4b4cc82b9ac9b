// From CoorDL (VLDB '21): the MinIO cache, a fixed part for each job that fills and is never evicted, and coordinated
// preparation: jobs of one dataset that run on one node fetch each sample once for all of them, and their parts are one
// cache. Left out: the time of the preparation itself, and the pace and the staging memory of coordinated jobs: a
// slower job need not keep up with the one that fetches. Each of these omissions is in CoorDL's favour.

#include <algorithm>

#include "scheduler/simulator/rule_based_cache.h"

namespace larder::scheduler {
namespace {

// MinIO alone: the part of a job is that of its GPUs.
class StaticPerJob : public RuleBasedCache {
public:
    using RuleBasedCache::RuleBasedCache;
    bool has_store_per_job() const override { return true; }

private:
    void set_quotas(const ReadersState& state) override {
        for (Store* store : state.stores) store->quota_bytes = 0;
        for (std::size_t i = 0; i < state.readers.size(); ++i) {
            SimulatedReader& reader = *state.readers[i];
            Store& store = *state.stores[reader.store];
            const double part = static_cast<double>(state.gpus[i]) / std::max(1U, state.gpus_all);
            store.quota_bytes = std::min(store.size_bytes, store.quota_bytes + state.storage.cache_bytes * part);
            reader.shares_fetches = store.readers.size() > 1;
        }
    }
};

class CoorDl final : public StaticPerJob {
public:
    using StaticPerJob::StaticPerJob;
    bool shares_stores_on_node() const override { return true; }
};

}  // namespace

std::unique_ptr<CacheSystem> make_static_per_job(const CacheOptions& options) {
    return std::make_unique<StaticPerJob>(options.bandwidth);
}

std::unique_ptr<CacheSystem> make_coordl(const CacheOptions& options) {
    return std::make_unique<CoorDl>(options.bandwidth);
}

}  // namespace larder::scheduler
