// From Quiver (FAST '20): cached samples stand in for the missing ones of a mini-batch (substitutable hits), cache is
// given in chunks of a tenth of a dataset by measured benefit per byte, and jobs that share a dataset go through it two
// chunks at a time, so that one fetch serves all of them. Left out: the time that probing for the benefit takes, chunks
// that move through the cache instead of staying, and the pace at which the jobs of a dataset wait for each other. Each
// of these omissions is in Quiver's favour.

#include <algorithm>
#include <cmath>
#include <vector>

#include "allocator/model.h"
#include "scheduler/simulator/rule_based_cache.h"

namespace larder::scheduler {
namespace {

constexpr double kChunks = 10;        // of a dataset
constexpr double kSharedChunks = 2;   // that jobs which share a dataset read together
constexpr double kFewestHits = 0.01;  // of a dataset; fewer hits are mixed with misses

class Quiver final : public RuleBasedCache {
public:
    using RuleBasedCache::RuleBasedCache;
    bool substitutes_hits() const override { return true; }

private:
    // A part of a dataset that may be cached, after the earlier parts.
    struct Choice {
        Store* store = nullptr;
        double bytes = 0;
        double benefit = 0;     // rate gained per byte, as measured: f* less the rate without any hit
        double remote_cut = 0;  // remote rate saved per byte at f*; decides where nothing would be gained now
    };

    void set_quotas(const ReadersState& state) override {
        choices_.clear();
        const double bandwidth =
            state.storage.remote_bytes_per_second / std::max(1.0, static_cast<double>(state.readers.size()));
        for (Store* store : state.stores) {
            store->quota_bytes = 0;
            add_choices(*store, bandwidth);
        }
        std::ranges::stable_sort(choices_, [](const Choice& a, const Choice& b) {
            if (a.benefit != b.benefit) return a.benefit > b.benefit;
            if (a.remote_cut != b.remote_cut) return a.remote_cut > b.remote_cut;
            return a.store->dataset < b.store->dataset;
        });
        double left = state.storage.cache_bytes;
        for (const Choice& choice : choices_) {
            const double chunk = choice.store->size_bytes / kChunks;
            constexpr double kRounding = 1e-9;
            const double room = std::floor(left / chunk + kRounding) * chunk;
            const double given = std::min({choice.bytes, room, left});
            choice.store->quota_bytes += given;
            left -= given;
        }
        for (const Store* store : state.stores) {
            const bool shares =
                store->readers.size() > 1 && store->quota_bytes * kChunks >= store->size_bytes * kSharedChunks;
            for (SimulatedReader* reader : store->readers) {
                reader->shares_fetches = shares;
                reader->substitutes_above_bytes = kFewestHits * store->size_bytes;
            }
        }
    }

    void add_choices(Store& store, double bandwidth) {
        double gain_all = 0;
        double gain_most = 0;
        double rate_all = 0;
        double rate_most = 0;
        for (const SimulatedReader* reader : store.readers) {
            const double gain = reader->ideal - allocator::predicted_rate(reader->ideal, bandwidth, 0);
            gain_all += gain;
            gain_most = std::max(gain_most, gain);
            rate_all += reader->ideal;
            rate_most = std::max(rate_most, reader->ideal);
        }
        if (store.readers.empty()) {
            choices_.push_back({.store = &store, .bytes = store.cached_bytes});
            return;
        }
        const double size = store.size_bytes;
        if (store.readers.size() == 1) {
            choices_.push_back(
                {.store = &store, .bytes = size, .benefit = gain_all / size, .remote_cut = rate_all / size});
            return;
        }
        // The first chunks let one reader fetch for all. The others save only its fetches.
        const double shared = kSharedChunks / kChunks;
        const auto first = [&](double all, double most) { return (all - most * (1 - shared)) / (shared * size); };
        choices_.push_back({.store = &store,
                            .bytes = shared * size,
                            .benefit = first(gain_all, gain_most),
                            .remote_cut = first(rate_all, rate_most)});
        choices_.push_back({.store = &store,
                            .bytes = (1 - shared) * size,
                            .benefit = gain_most / size,
                            .remote_cut = rate_most / size});
    }

    std::vector<Choice> choices_;
};

}  // namespace

std::unique_ptr<CacheSystem> make_quiver(const CacheOptions& options) {
    return std::make_unique<Quiver>(options.bandwidth);
}

}  // namespace larder::scheduler
