#include <algorithm>

#include "allocator/model.h"
#include "scheduler/simulator/cache_system.h"
#include "scheduler/simulator/planned_cluster.h"

namespace larder::scheduler {
namespace {

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
        auto plan = make_plan(state);
        if (!plan) return std::unexpected(plan.error());
        // Bandwidth is granted for what can be hit, so where a quota has cut the cache it is granted anew, as the
        // daemon does within a second.
        if (cut_to_quotas(state, *plan)) {
            plan = make_plan(state);
            if (!plan) return std::unexpected(plan.error());
            cut_to_quotas(state, *plan);
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
    Result<allocator::Plan> make_plan(const ReadersState& state) {
        cluster_.describe(state, true);
        return allocator::assign(cluster_.state, objective_);
    }

    // Returns true if some store held more than its quota.
    bool cut_to_quotas(const ReadersState& state, const allocator::Plan& plan) const {
        bool any = false;
        for (Store* store : state.stores) {
            const auto& quotas = plan.datasets[cluster_.dataset_at.at(store->dataset)].quotas;
            const auto quota = std::ranges::find(quotas, store->node, &allocator::NodeCache::node);
            store->quota_bytes =
                quota == quotas.end() ? 0 : std::min(store->size_bytes, static_cast<double>(quota->bytes()));
            any = any || store->cached_bytes > store->quota_bytes + 1;  // quotas are whole bytes
            cut_to_quota(*store);
        }
        return any;
    }

    CacheOptions options_;
    allocator::Objective objective_;
    PlannedCluster cluster_;
};

}  // namespace

std::unique_ptr<CacheSystem> make_uniform_by_node(const CacheOptions& options) {
    return std::make_unique<UniformByNode>(options);
}

}  // namespace larder::scheduler
