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
            add_choices(state, *store, bandwidth);
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

    // The gains of readers: their sum and the largest.
    struct Gains {
        double all = 0;
        double most = 0;

        void add(double gain) {
            all += gain;
            most = std::max(most, gain);
        }
    };

    void add_choices(const ReadersState& state, Store& store, double bandwidth) {
        Gains measured, measured_hits, remote, remote_hits;
        double room = store.cached_bytes;
        for (const SimulatedReader* reader : store.readers) {
            // In its last epoch, a job is served by what is cached already, and by no more.
            const bool gains = state.gains(*reader);
            const double of_hits = gains ? 1 : store.cached_bytes / store.size_bytes;
            if (gains) room = store.size_bytes;
            const double ideal = told_ideal(*reader);
            const double gain = ideal - allocator::predicted_rate(ideal, bandwidth, 0);
            measured.add(gain);
            measured_hits.add(gain * of_hits);
            remote.add(ideal);
            remote_hits.add(ideal * of_hits);
        }
        const double size = store.size_bytes;
        if (store.readers.size() < 2) {
            choices_.push_back({.store = &store,
                                .bytes = room,
                                .benefit = measured_hits.all / size,
                                .remote_cut = remote_hits.all / size});
            return;
        }
        // The first chunks let one reader fetch for all. The others save only its fetches.
        const double shared = kSharedChunks / kChunks;
        const auto first = [&](const Gains& gains) {
            return (gains.all - gains.most * (1 - shared)) / (shared * size);
        };
        choices_.push_back(
            {.store = &store, .bytes = shared * size, .benefit = first(measured), .remote_cut = first(remote)});
        choices_.push_back({.store = &store,
                            .bytes = std::max(0.0, room - shared * size),
                            .benefit = measured_hits.most / size,
                            .remote_cut = remote_hits.most / size});
    }

    std::vector<Choice> choices_;
};

}  // namespace

std::unique_ptr<CacheSystem> make_quiver(const CacheOptions& options) {
    return std::make_unique<Quiver>(options.bandwidth);
}

}  // namespace larder::scheduler
