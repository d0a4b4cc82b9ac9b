#include "scheduler/simulator/cache_system.h"

#include <algorithm>
#include <array>
#include <string>

#include "allocator/model.h"

namespace larder::scheduler {

std::unique_ptr<CacheSystem> make_uniform(const CacheOptions& options);
std::unique_ptr<CacheSystem> make_uniform_by_node(const CacheOptions& options);

namespace {

template <typename Kind>
struct Named {
    std::string_view name;
    Kind kind;
};

constexpr std::array kCaches{
    Named{"uniform", CacheKind::uniform},
    Named{"lru", CacheKind::lru},
    Named{"static-per-job", CacheKind::static_per_job},
    Named{"whole-dataset", CacheKind::whole_dataset},
    Named{"none", CacheKind::none},
};
constexpr std::array kBandwidths{
    Named{"joint", BandwidthKind::joint},
    Named{"fair", BandwidthKind::fair},
    Named{"first-come", BandwidthKind::first_come},
};

template <typename Table>
std::string all_names(const Table& table) {
    std::string names;
    for (const auto& one : table) names += (names.empty() ? "" : ", ") + std::string(one.name);
    return names;
}

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

class NoCache final : public RuleBasedCache {
public:
    using RuleBasedCache::RuleBasedCache;

private:
    void set_quotas(const ReadersState& state) override {
        for (Store* store : state.stores) store->quota_bytes = 0;
    }
};

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

class WholeDataset final : public RuleBasedCache {
public:
    using RuleBasedCache::RuleBasedCache;

private:
    // The benefit of caching a dataset is the remote reads that its jobs save, per cached byte.
    void set_quotas(const ReadersState& state) override {
        struct Choice {
            Store* store = nullptr;
            double benefit = 0;
        };
        std::vector<Choice> choices;
        choices.reserve(state.stores.size());
        for (Store* store : state.stores) {
            double ideal = 0;
            for (const SimulatedReader* reader : store->readers) ideal += reader->ideal;
            choices.push_back({.store = store, .benefit = ideal / store->size_bytes});
        }
        std::ranges::sort(choices, [](const Choice& a, const Choice& b) {
            return a.benefit != b.benefit ? a.benefit > b.benefit : a.store->dataset < b.store->dataset;
        });
        double left = state.storage.cache_bytes;
        for (const Choice& choice : choices) {
            const bool fits =
                choice.store->size_bytes <= left && (choice.benefit > 0 || choice.store->cached_bytes > 0);
            choice.store->quota_bytes = fits ? choice.store->size_bytes : 0;
            if (fits) left -= choice.store->size_bytes;
        }
    }
};

class Lru final : public RuleBasedCache {
public:
    using RuleBasedCache::RuleBasedCache;
    bool is_fluid() const override { return false; }
    double next_plan_s(std::span<const std::unique_ptr<Store>> stores, double now_s) const override {
        return next_lru_refresh_s(stores, now_s);
    }

private:
    void set_quotas(const ReadersState& state) override {
        for (Store* store : state.stores) store->quota_bytes = 0;
    }
    // Rates decide what stays cached, and what stays cached decides the rates. A few rounds converge.
    void set_rates(const ReadersState& state) override {
        for (SimulatedReader* reader : state.readers) reader->rate = reader->ideal;
        constexpr int kRounds = 6;
        for (int round = 0; round < kRounds; ++round) {
            set_lru_hits(state.stores, state.storage.cache_bytes, state.now_s);
            RuleBasedCache::set_rates(state);
        }
    }
};

}  // namespace

Result<CacheOptions> parse_cache(std::string_view cache, std::string_view bandwidth) {
    CacheOptions options;
    if (const std::size_t plus = cache.find('+'); plus != std::string_view::npos) {
        if (!bandwidth.empty() && bandwidth != cache.substr(plus + 1)) {
            return fail(
                ErrorCode::invalid_argument,
                "cache \"" + std::string(cache) + "\" contradicts remote bandwidth \"" + std::string(bandwidth) + "\"");
        }
        bandwidth = cache.substr(plus + 1);
        if (bandwidth.empty()) {
            return fail(ErrorCode::invalid_argument,
                        "cache \"" + std::string(cache) + "\": expected after + one of " + all_names(kBandwidths));
        }
        cache = cache.substr(0, plus);
    }
    const auto kind = std::ranges::find(kCaches, cache, &Named<CacheKind>::name);
    if (kind == kCaches.end()) {
        return fail(ErrorCode::invalid_argument,
                    "cache \"" + std::string(cache) + "\" is unknown; known: uniform+joint, " + all_names(kCaches));
    }
    options.cache = kind->kind;
    if (bandwidth.empty()) bandwidth = options.cache == CacheKind::uniform ? "joint" : "fair";
    const auto rule = std::ranges::find(kBandwidths, bandwidth, &Named<BandwidthKind>::name);
    if (rule == kBandwidths.end()) {
        return fail(ErrorCode::invalid_argument,
                    "remote bandwidth \"" + std::string(bandwidth) + "\" is unknown; known: " + all_names(kBandwidths));
    }
    options.bandwidth = rule->kind;
    if (options.bandwidth == BandwidthKind::joint && options.cache != CacheKind::uniform) {
        return fail(ErrorCode::invalid_argument,
                    "remote bandwidth \"joint\" comes from the plan of cache \"uniform\"; with \"" +
                        std::string(cache) + "\" use fair or first-come");
    }
    return options;
}

std::string name(const CacheOptions& options) {
    const auto kind = std::ranges::find(kCaches, options.cache, &Named<CacheKind>::kind);
    const auto rule = std::ranges::find(kBandwidths, options.bandwidth, &Named<BandwidthKind>::kind);
    return std::string(kind->name) + "+" + std::string(rule->name);
}

void share_bandwidth(BandwidthKind kind, std::span<SimulatedReader* const> readers, double remote_bytes_per_second) {
    struct Taker {
        SimulatedReader* reader = nullptr;
        double need = 0;
    };
    std::vector<Taker> takers;
    takers.reserve(readers.size());
    for (SimulatedReader* reader : readers)
        takers.push_back({.reader = reader, .need = reader->ideal * (1 - reader->hit_ratio)});
    const bool fair = kind != BandwidthKind::first_come;
    std::ranges::sort(takers, [&](const Taker& a, const Taker& b) {
        if (fair && a.need != b.need) return a.need < b.need;
        return a.reader->started < b.reader->started;
    });
    double left = remote_bytes_per_second;
    for (std::size_t i = 0; i < takers.size(); ++i) {
        const double most = fair ? left / static_cast<double>(takers.size() - i) : left;
        SimulatedReader& reader = *takers[i].reader;
        reader.bandwidth = std::min(takers[i].need, most);
        left -= reader.bandwidth;
        reader.rate = allocator::predicted_rate(reader.ideal, reader.bandwidth, reader.hit_ratio);
    }
}

void set_equal_rates(const ReadersState& state) {
    const auto count = static_cast<double>(state.readers.size());
    for (SimulatedReader* reader : state.readers) {
        reader->equal_rate = reader->ideal;
    }
    for (const Store* store : state.stores) {
        if (store->readers.empty()) continue;
        const double share = state.storage.cache_bytes * static_cast<double>(store->readers.size()) / count;
        const double hits = allocator::hit_ratio(share, store->size_bytes);
        for (SimulatedReader* reader : store->readers) {
            reader->equal_rate =
                allocator::predicted_rate(reader->ideal, state.storage.remote_bytes_per_second / count, hits);
        }
    }
}

std::unique_ptr<CacheSystem> make_cache_system(const CacheOptions& options) {
    switch (options.cache) {
        case CacheKind::uniform: return options.own_caches ? make_uniform_by_node(options) : make_uniform(options);
        case CacheKind::lru: return std::make_unique<Lru>(options.bandwidth);
        case CacheKind::static_per_job: return std::make_unique<StaticPerJob>(options.bandwidth);
        case CacheKind::whole_dataset: return std::make_unique<WholeDataset>(options.bandwidth);
        case CacheKind::none: return std::make_unique<NoCache>(options.bandwidth);
    }
    return nullptr;
}

}  // namespace larder::scheduler
