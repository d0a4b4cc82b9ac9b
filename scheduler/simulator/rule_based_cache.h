#pragma once

// The base of the cache systems that set quotas by a rule and leave bandwidth to the network.

#include "scheduler/simulator/cache_system.h"

namespace larder::scheduler {

// Sets quotas by a rule, hit ratios from the stores (or by LRU's formula), and bandwidth by the given bandwidth rule.
class RuleBasedCache : public CacheSystem {
public:
    explicit RuleBasedCache(BandwidthKind bandwidth) : bandwidth_(bandwidth) {}

    Result<void> plan(const ReadersState& state) override {
        set_quotas(state);
        for (Store* store : state.stores) cut_to_quota(*store);
        for (SimulatedReader* reader : state.readers) {
            reader->hit_ratio = rest_hit_ratio(*reader);
        }
        set_rates(state);
        return {};
    }

protected:
    virtual void set_quotas(const ReadersState& state) = 0;
    virtual void set_rates(const ReadersState& state) {
        share_bandwidth(bandwidth_, state.readers, state.storage.remote_bytes_per_second);
    }

private:
    BandwidthKind bandwidth_;
};

}  // namespace larder::scheduler
