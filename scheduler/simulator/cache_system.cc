#include "scheduler/simulator/cache_system.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "allocator/model.h"
#include "scheduler/simulator/rule_based_cache.h"

namespace larder::scheduler {

std::unique_ptr<CacheSystem> make_uniform(const CacheOptions& options);
std::unique_ptr<CacheSystem> make_uniform_by_node(const CacheOptions& options);
std::unique_ptr<CacheSystem> make_static_per_job(const CacheOptions& options);
std::unique_ptr<CacheSystem> make_coordl(const CacheOptions& options);
std::unique_ptr<CacheSystem> make_quiver(const CacheOptions& options);

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
    Named{"coordl", CacheKind::coordl},
    Named{"whole-dataset", CacheKind::whole_dataset},
    Named{"quiver", CacheKind::quiver},
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

class NoCache final : public RuleBasedCache {
public:
    using RuleBasedCache::RuleBasedCache;

private:
    void set_quotas(const ReadersState& state) override {
        for (Store* store : state.stores) store->quota_bytes = 0;
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
            double bytes = 0;
            double benefit = 0;
        };
        std::vector<Choice> choices;
        choices.reserve(state.stores.size());
        for (Store* store : state.stores) {
            double ideal = 0;
            Choice& choice = choices.emplace_back(Choice{.store = store, .bytes = store->cached_bytes});
            for (const SimulatedReader* reader : store->readers) {
                // In its last epoch, a job is served by what is cached already, and by no more.
                const bool gains = state.gains(*reader);
                ideal += told_ideal(*reader) * (gains ? 1 : store->cached_bytes / store->size_bytes);
                if (gains) choice.bytes = store->size_bytes;
            }
            choice.benefit = ideal / store->size_bytes;
        }
        std::ranges::sort(choices, [](const Choice& a, const Choice& b) {
            return a.benefit != b.benefit ? a.benefit > b.benefit : a.store->dataset < b.store->dataset;
        });
        double left = state.storage.cache_bytes;
        for (const Choice& choice : choices) {
            const bool fits = choice.bytes <= left;
            choice.store->quota_bytes = fits ? choice.bytes : 0;
            if (fits) left -= choice.bytes;
        }
    }
};

class Lru final : public RuleBasedCache {
public:
    explicit Lru(const CacheOptions& options) : RuleBasedCache(options.bandwidth), step_s_(options.lru_step_s) {}
    bool is_fluid() const override { return false; }
    double next_plan_s(std::span<const std::unique_ptr<Store>> stores, double now_s) const override {
        if (!follows_epochs()) return next_lru_refresh_s(stores, now_s);
        const bool any_reads = std::ranges::any_of(stores, [](const auto& store) { return !store->readers.empty(); });
        return any_reads ? now_s + step_s_ : kNever;
    }

private:
    bool follows_epochs() const { return step_s_ > 0; }
    void set_quotas(const ReadersState& state) override {
        for (Store* store : state.stores) store->quota_bytes = 0;
    }
    // Rates decide what stays cached, and what stays cached decides the rates. A few rounds converge.
    void set_rates(const ReadersState& state) override {
        for (SimulatedReader* reader : state.readers) {
            reader->rate = reader->ideal;
            if (!follows_epochs() || reader->turn_s >= state.now_s) continue;
            end_turn(*reader, state.now_s);
            begin_turn(*reader, state.now_s);
        }
        constexpr int kRounds = 6;
        for (int round = 0; round < kRounds; ++round) {
            set_lru_hits(state.stores, state.storage.cache_bytes, state.now_s, follows_epochs());
            RuleBasedCache::set_rates(state);
        }
    }

    double step_s_;
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
    // One or several readers: those that share what they fetch take bandwidth as one.
    struct Taker {
        double need = 0;
        double readers = 0;  // each has a claim to a fair share
        std::uint64_t started = std::numeric_limits<std::uint64_t>::max();
        double bandwidth = 0;
        SimulatedReader* fetches = nullptr;  // the reader that misses most
    };
    std::vector<Taker> takers;
    takers.reserve(readers.size());
    std::vector<std::size_t> taker_of;
    taker_of.reserve(readers.size());
    std::map<std::uint32_t, std::size_t> taker_of_store;
    for (const SimulatedReader* reader : readers) {
        std::size_t at = takers.size();
        if (reader->shares_fetches) at = taker_of_store.emplace(reader->store, at).first->second;
        if (at == takers.size()) takers.emplace_back();
        taker_of.push_back(at);
        Taker& taker = takers[at];
        taker.need = std::max(taker.need, reader->ideal * (1 - reader->hit_ratio));
        taker.readers += 1;
        taker.started = std::min(taker.started, reader->started);
    }
    const bool fair = kind != BandwidthKind::first_come;
    std::vector<std::size_t> order(takers.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
        const double need_a = takers[a].need / takers[a].readers;
        const double need_b = takers[b].need / takers[b].readers;
        if (fair && need_a != need_b) return need_a < need_b;
        return takers[a].started < takers[b].started;
    });
    double left = remote_bytes_per_second;
    auto readers_left = static_cast<double>(readers.size());
    for (const std::size_t at : order) {
        Taker& taker = takers[at];
        const double most = fair ? left / readers_left * taker.readers : left;
        taker.bandwidth = std::min(taker.need, most);
        left -= taker.bandwidth;
        readers_left -= taker.readers;
    }
    for (std::size_t i = 0; i < readers.size(); ++i) {
        SimulatedReader& reader = *readers[i];
        Taker& taker = takers[taker_of[i]];
        reader.bandwidth = taker.bandwidth;
        set_rate(reader);
        reader.fetch_part = 1;
        if (!reader.shares_fetches) continue;
        SimulatedReader*& fetches = taker.fetches;
        const bool misses_most = fetches == nullptr || miss_rate(reader) > miss_rate(*fetches);
        SimulatedReader* const follows = misses_most ? std::exchange(fetches, &reader) : &reader;
        if (follows != nullptr) follows->fetch_part = 0;
    }
}

std::unique_ptr<CacheSystem> make_cache_system(const CacheOptions& options) {
    switch (options.cache) {
        case CacheKind::uniform: return options.own_caches ? make_uniform_by_node(options) : make_uniform(options);
        case CacheKind::lru: return std::make_unique<Lru>(options);
        case CacheKind::static_per_job: return make_static_per_job(options);
        case CacheKind::coordl: return make_coordl(options);
        case CacheKind::whole_dataset: return std::make_unique<WholeDataset>(options.bandwidth);
        case CacheKind::quiver: return make_quiver(options);
        case CacheKind::none: return std::make_unique<NoCache>(options.bandwidth);
    }
    return nullptr;
}

}  // namespace larder::scheduler
