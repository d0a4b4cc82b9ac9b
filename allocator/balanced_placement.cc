#include "allocator/balanced_placement.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "allocator/bandwidth_limits.h"
#include "allocator/sorted_indices.h"

namespace larder::allocator {
namespace {

constexpr double kWorkMax = 2e6;  // operations of one search, at about 5 ns each
constexpr double kTriesMax = 128;
constexpr double kWorkPerPair = 40;  // a place for a cache, in one try
constexpr double kWorkPerJob = 50;   // the rates of a job, in one try
constexpr int kHalvings = 40;
constexpr double kBusyEnough = 0.8;
constexpr double kBusiestMax = 1e9;  // how far above its limit a node may be planned

// The room that a node has left, and the rates that its disk and its outgoing network carry already.
struct NodeLoad {
    double memory_bytes = 0;
    double disk_bytes = 0;
    double disk_rate = 0;
    double out_rate = 0;
};

// Bytes of a dataset on one node.
struct PlacedBytes {
    double memory_bytes = 0;
    double disk_bytes = 0;

    double bytes() const { return memory_bytes + disk_bytes; }
};

// One node, as a place for one dataset: the rate at which a byte there is read, and at which it crosses the network.
struct Place {
    std::uint32_t node = 0;
    double read_per_byte = 0;
    double out_per_byte = 0;
};

class Balance {
public:
    Balance(const ClusterState& state, const Problem& problem) : state_(state), loads_(state.nodes.size()) {
        for (std::size_t n = 0; n < loads_.size(); ++n) {
            loads_[n] = {.memory_bytes = static_cast<double>(state.nodes[n].memory_bytes),
                         .disk_bytes = static_cast<double>(state.nodes[n].disk_bytes)};
        }
        nodes_of_group_.resize(problem.group_bytes.size());
        for (const std::uint32_t n : problem.nodes_in_order) nodes_of_group_[problem.group_of_node[n]].push_back(n);
    }

    std::span<const std::uint32_t> nodes_of(std::uint32_t group) const { return nodes_of_group_[group]; }

    // Returns how many bytes the place takes if its node may be `busiest` times as busy as its limits allow. Memory
    // comes first: it needs no disk.
    PlacedBytes fits(const Place& place, double busiest) const {
        const ClusterNode& node = state_.nodes[place.node];
        const NodeLoad& load = loads_[place.node];
        const auto most = [&](double limit, double rate, double per_byte) {
            if (std::isinf(limit) || per_byte <= 0) return std::numeric_limits<double>::infinity();
            return std::max(0.0, limit * busiest - rate) / per_byte;
        };
        const double out_bytes = most(node.nic_bytes_per_second, load.out_rate, place.out_per_byte);
        PlacedBytes piece{.memory_bytes = std::min(load.memory_bytes, out_bytes)};
        piece.disk_bytes = std::min({load.disk_bytes, out_bytes - piece.memory_bytes,
                                     most(node.disk_read_bytes_per_second, load.disk_rate, place.read_per_byte)});
        return piece;
    }

    void take(const Place& place, const PlacedBytes& piece) {
        NodeLoad& load = loads_[place.node];
        load.memory_bytes = std::max(0.0, load.memory_bytes - piece.memory_bytes);
        load.disk_bytes = std::max(0.0, load.disk_bytes - piece.disk_bytes);
        load.disk_rate += piece.disk_bytes * place.read_per_byte;
        load.out_rate += piece.bytes() * place.out_per_byte;
    }

private:
    const ClusterState& state_;
    std::vector<NodeLoad> loads_;
    std::vector<std::vector<std::uint32_t>> nodes_of_group_;
};

// Takes up to `bytes` of a piece, memory first.
PlacedBytes part_of(const PlacedBytes& piece, double bytes) {
    PlacedBytes part{.memory_bytes = std::min(piece.memory_bytes, bytes)};
    part.disk_bytes = std::min(piece.disk_bytes, bytes - part.memory_bytes);
    return part;
}

// Places caches one after another, for jobs that read at these rates. Held quotas and floors are placed from the start.
class Placing {
public:
    Placing(const ClusterState& state, const Problem& problem, std::span<const double> rates)
        : state_(state),
          problem_(problem),
          rates_(rates),
          balance_(state, problem),
          quotas_(state.datasets.size()),
          placed_(problem.caches.size()),
          read_per_byte_(reads_per_byte(problem, rates)),
          local_per_byte_(state.nodes.size()) {
        for (std::uint32_t d = 0; d < quotas_.size(); ++d) {
            for (const NodeCache& held : state.datasets[d].held) {
                const std::uint32_t i = problem.cache_on(d, held.node);
                add(i, {.node = held.node, .read_per_byte = read_per_byte_[i], .out_per_byte = read_per_byte_[i]},
                    {.memory_bytes = static_cast<double>(held.memory_bytes),
                     .disk_bytes = static_cast<double>(held.disk_bytes)});
            }
        }
        for (std::uint32_t i = 0; i < problem.caches.size(); ++i) place(i, problem.caches[i].floor, kBusiestMax);
    }

    std::vector<std::uint32_t> densest_first() const { return descending(read_per_byte_); }

    // Places bytes of the cache until it has `bytes`, as evenly as the nodes' limits and loads allow, with no node more
    // than `busiest` times as busy as its limits allow.
    void place(std::uint32_t i, double bytes, double busiest) {
        const double wanted = std::min(bytes, problem_.caches[i].cap) - placed_[i];
        if (wanted < 1) return;
        find_places(i);
        const auto fit_at = [&](double level) {
            double fitting = 0;
            for (const Place& place : places_) fitting += balance_.fits(place, level).bytes();
            return fitting;
        };
        double low = 0;
        double high = busiest;
        if (fit_at(0) >= wanted) {
            high = 0;
        } else if (fit_at(high) > wanted) {
            for (int step = 0; step < kHalvings; ++step) {
                constexpr double kSmall = 1e-6;
                const double from = std::max(low, kSmall);
                const double middle = high > 2 * from ? std::sqrt(from * high) : (low + high) / 2;
                (fit_at(middle) >= wanted ? high : low) = middle;
            }
        }
        double left = wanted;
        // Fewer nodes get a quota if each may be this busy.
        high = std::max(high, std::min(busiest, kBusyEnough));
        for (const Place& place : places_) {
            if (left < 1) break;
            const PlacedBytes piece = part_of(balance_.fits(place, high), left);
            left -= piece.bytes();
            add(i, place, piece);
        }
    }

    // Places what jobs read on nodes whose incoming network is too slow for the jobs there: densest first, until the
    // network carries the rest.
    void relieve_networks() {
        std::vector<double> excess(state_.nodes.size());
        std::vector<std::vector<std::pair<double, std::uint32_t>>> local(state_.nodes.size());  // bytes/s a byte; cache
        for (std::uint32_t j = 0; j < problem_.jobs.size(); ++j) {
            for (const JobRun& run : problem_.runs_of(j)) excess[run.node] += rates_[j] * run.part;
        }
        for (std::uint32_t n = 0; n < excess.size(); ++n) excess[n] -= state_.nodes[n].nic_bytes_per_second;
        // Caches are in an order independent of the state's. Those of one dataset are adjacent.
        for (std::uint32_t first = 0; first < problem_.caches.size(); ++first) {
            const std::uint32_t d = problem_.caches[first].dataset;
            const DatasetTerms& terms = problem_.datasets[d];
            if (terms.caches_begin != first) continue;
            for (std::uint32_t j = terms.jobs_begin; j < terms.jobs_end; ++j) {
                const double rate = rates_[j] * problem_.gains_once_filled[j];
                if (rate <= 0) continue;
                for (const JobRun& run : problem_.runs_of(j)) {
                    if (!(excess[run.node] > 0)) continue;
                    const std::uint32_t i = problem_.cache_on(d, run.node);
                    auto& on_node = local[run.node];
                    if (on_node.empty() || on_node.back().second != i) on_node.emplace_back(0, i);
                    on_node.back().first += rate * run.part / problem_.caches[i].size;
                }
            }
        }
        for (const std::uint32_t n : problem_.nodes_in_order) {
            std::ranges::stable_sort(local[n], std::ranges::greater{}, [](const auto& entry) { return entry.first; });
            for (const auto& [relief_per_byte, i] : local[n]) {
                if (!(excess[n] > 0)) break;
                if (state_.datasets[problem_.caches[i].dataset].is_held_on(n)) continue;
                const Place place{.node = n,
                                  .read_per_byte = read_per_byte_[i],
                                  .out_per_byte = std::max(0.0, read_per_byte_[i] - relief_per_byte)};
                const double useful = std::min(excess[n] / relief_per_byte, problem_.caches[i].cap - placed_[i]);
                const PlacedBytes piece = part_of(balance_.fits(place, 1), std::max(0.0, useful));
                excess[n] -= piece.bytes() * relief_per_byte;
                add(i, place, piece);
            }
        }
    }

    std::vector<std::vector<NodeCache>> take() {
        restore_floors(state_, problem_, quotas_);
        return std::move(quotas_);
    }

private:
    // Finds the nodes of the cache's group. Readers come first, fastest first, so that nodes that are never busy hold
    // their own jobs' data.
    void find_places(std::uint32_t i) {
        const GroupCache& cache = problem_.caches[i];
        const DatasetTerms& terms = problem_.datasets[cache.dataset];
        for (std::uint32_t j = terms.jobs_begin; j < terms.jobs_end; ++j) {
            const double rate = rates_[j] * problem_.gains_once_filled[j];
            for (const JobRun& run : problem_.runs_of(j)) local_per_byte_[run.node] += run.part * rate / cache.size;
        }
        places_.clear();
        for (const std::uint32_t n : balance_.nodes_of(cache.group)) {
            if (state_.datasets[cache.dataset].is_held_on(n)) continue;
            places_.push_back({.node = n,
                               .read_per_byte = read_per_byte_[i],
                               .out_per_byte = std::max(0.0, read_per_byte_[i] - local_per_byte_[n])});
        }
        std::ranges::stable_sort(places_, {}, &Place::out_per_byte);
        for (std::uint32_t j = terms.jobs_begin; j < terms.jobs_end; ++j) {
            for (const JobRun& run : problem_.runs_of(j)) local_per_byte_[run.node] = 0;
        }
    }

    void add(std::uint32_t i, const Place& place, const PlacedBytes& piece) {
        const auto memory_bytes = static_cast<std::uint64_t>(piece.memory_bytes);
        const auto disk_bytes = static_cast<std::uint64_t>(piece.disk_bytes);
        if (memory_bytes + disk_bytes == 0) return;
        balance_.take(place, piece);
        placed_[i] += piece.bytes();
        NodeCache& quota = quota_on(quotas_[problem_.caches[i].dataset], place.node);
        quota.memory_bytes += memory_bytes;
        quota.disk_bytes += disk_bytes;
    }

    const ClusterState& state_;
    const Problem& problem_;
    std::span<const double> rates_;
    Balance balance_;
    std::vector<std::vector<NodeCache>> quotas_;
    std::vector<double> placed_;          // bytes of each cache
    std::vector<double> read_per_byte_;   // by cache
    std::vector<double> local_per_byte_;  // by node; 0 but within find_places()
    std::vector<Place> places_;
};

}  // namespace

int tries_in_time(const Problem& problem) {
    std::vector<double> nodes(problem.group_bytes.size());
    for (const std::uint32_t group : problem.group_of_node) ++nodes[group];
    double pairs = 0;
    for (const GroupCache& cache : problem.caches) pairs += nodes[cache.group];
    const double work = kWorkPerPair * pairs + kWorkPerJob * static_cast<double>(problem.jobs.size());
    return static_cast<int>(std::min(kTriesMax, kWorkMax / std::max(1.0, work)));
}

std::vector<std::vector<NodeCache>> balanced_quotas(const ClusterState& state, const Problem& problem,
                                                    const CacheSplit& split, std::span<const double> rates) {
    Placing placing(state, problem, rates);
    for (const std::uint32_t i : placing.densest_first()) placing.place(i, split[i], kBusiestMax);
    return placing.take();
}

std::vector<std::vector<NodeCache>> carrying_quotas(const ClusterState& state, const Problem& problem,
                                                    std::span<const double> rates) {
    Placing placing(state, problem, rates);
    // Jobs with a cap reach these rates only with so much cache.
    const std::vector<double> least = least_cache(problem, rates);
    for (std::uint32_t i = 0; i < least.size(); ++i) placing.place(i, least[i], kBusiestMax);
    placing.relieve_networks();
    for (const std::uint32_t i : placing.densest_first()) placing.place(i, problem.caches[i].cap, 1);
    return placing.take();
}

}  // namespace larder::allocator
