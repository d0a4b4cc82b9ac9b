#include "allocator/quota_placement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "allocator/sort_few.h"
#include "allocator/sorted_indices.h"

namespace larder::allocator {
namespace {

constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();

// The cache room left on each node.
class NodeRoom {
public:
    NodeRoom(const ClusterState& state, const Problem& problem)
        : left_(state.nodes.size()),
          rank_(state.nodes.size()),
          by_rank_(problem.nodes_in_order),
          group_of_node_(problem.group_of_node),
          widest_(problem.group_bytes.size()) {
        for (std::uint32_t i = 0; i < by_rank_.size(); ++i) rank_[by_rank_[i]] = i;
        for (std::uint32_t n = 0; n < left_.size(); ++n) {
            left_[n] = {
                .node = n, .memory_bytes = state.nodes[n].memory_bytes, .disk_bytes = state.nodes[n].disk_bytes};
        }
    }

    std::uint32_t rank(std::uint32_t node) const { return rank_[node]; }

    // Takes up to `bytes`, memory first, at most the given bytes of each tier. Returns the room it took.
    NodeCache take(std::uint32_t node, std::uint64_t bytes, std::uint64_t memory_max, std::uint64_t disk_max) {
        NodeCache taken{.node = node};
        taken.memory_bytes = std::min({bytes, memory_max, left_[node].memory_bytes});
        taken.disk_bytes = std::min({bytes - taken.memory_bytes, disk_max, left_[node].disk_bytes});
        left_[node].memory_bytes -= taken.memory_bytes;
        left_[node].disk_bytes -= taken.disk_bytes;
        return taken;
    }

    // Returns the node of the group with most room; nullopt if all are full. After the first call, the room of nodes
    // may only shrink (by `take`).
    std::optional<std::uint32_t> widest(std::uint32_t group) {
        if (!heaps_built_) {
            for (const std::uint32_t node : by_rank_) {
                if (left_[node].bytes() == 0) continue;
                widest_[group_of_node_[node]].push_back({left_[node].bytes(), rank_[node]});
            }
            for (auto& heap : widest_) std::ranges::make_heap(heap, kNarrower);
            heaps_built_ = true;
        }
        auto& heap = widest_[group];
        while (!heap.empty()) {
            const auto [bytes, rank] = heap.front();
            const std::uint32_t node = by_rank_[rank];
            if (bytes > 0 && bytes == left_[node].bytes()) return node;
            std::ranges::pop_heap(heap, kNarrower);
            heap.pop_back();
            if (left_[node].bytes() == 0) continue;
            heap.push_back({left_[node].bytes(), rank});
            std::ranges::push_heap(heap, kNarrower);
        }
        return std::nullopt;
    }

private:
    using Entry = std::pair<std::uint64_t, std::uint32_t>;  // bytes left, rank
    static constexpr auto kNarrower = [](const Entry& a, const Entry& b) {
        return a.first != b.first ? a.first < b.first : a.second > b.second;
    };

    std::vector<NodeCache> left_;
    std::vector<std::uint32_t> rank_;
    const std::vector<std::uint32_t>& by_rank_;
    const std::vector<std::uint32_t>& group_of_node_;
    std::vector<std::vector<Entry>> widest_;  // by group
    bool heaps_built_ = false;
};

// Rounds up like ceil, which is a function call if the processor is not known to have an instruction for it.
std::uint64_t rounded_up(double bytes) {
    const auto whole = static_cast<std::int64_t>(bytes);
    return static_cast<std::uint64_t>(whole + (static_cast<double>(whole) < bytes ? 1 : 0));
}

struct Placed {
    std::uint32_t dataset = 0;
    NodeCache cache;
};

// Returns the indices of `placed`, node by node.
std::vector<std::uint32_t> by_node(std::span<const Placed> placed, std::size_t nodes) {
    std::vector<std::uint32_t> next(nodes + 1);
    for (const Placed& piece : placed) ++next[piece.cache.node + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    std::vector<std::uint32_t> order(placed.size());
    for (std::uint32_t i = 0; i < placed.size(); ++i) order[next[placed[i].cache.node]++] = i;
    return order;
}

// Returns each dataset's quotas by node, with the pieces placed on one node added up.
std::vector<std::vector<NodeCache>> by_dataset(std::span<const Placed> placed, std::size_t datasets,
                                               std::size_t nodes) {
    std::vector<std::uint32_t> count(datasets);
    for (const Placed& piece : placed) ++count[piece.dataset];
    std::vector<std::vector<NodeCache>> quotas(datasets);
    for (std::size_t i = 0; i < datasets; ++i) quotas[i].reserve(count[i]);
    for (const std::uint32_t i : by_node(placed, nodes)) {
        const NodeCache& quota = placed[i].cache;
        std::vector<NodeCache>& dataset_quotas = quotas[placed[i].dataset];
        if (!dataset_quotas.empty() && dataset_quotas.back().node == quota.node) {
            dataset_quotas.back().memory_bytes += quota.memory_bytes;
            dataset_quotas.back().disk_bytes += quota.disk_bytes;
        } else {
            dataset_quotas.push_back(quota);
        }
    }
    return quotas;
}

struct Reader {
    double rate = 0;
    std::uint32_t node = 0;
};

// Finds the group's nodes where the dataset's jobs run, with their read rates, fastest first. `rate_at`, by node, is
// below 0 for all nodes before and after the call.
void find_readers(const Problem& problem, const GroupCache& cache, std::span<const double> rates, const NodeRoom& room,
                  std::vector<double>& rate_at, std::vector<Reader>& found) {
    found.clear();
    const DatasetTerms& terms = problem.datasets[cache.dataset];
    for (std::uint32_t j = terms.jobs_begin; j < terms.jobs_end; ++j) {
        for (const Run& run : problem.runs_of(j)) {
            if (problem.group_of_node[run.node] != cache.group) continue;
            if (rate_at[run.node] < 0) {
                rate_at[run.node] = 0;
                found.push_back({.node = run.node});
            }
            rate_at[run.node] += rates[j] * run.part;
        }
    }
    for (Reader& reader : found) reader.rate = std::exchange(rate_at[reader.node], -1);
    // A dataset's jobs are listed slowest first, so the list most often only needs reversing.
    if (std::ranges::adjacent_find(found, std::ranges::greater_equal(), &Reader::rate) == found.end()) {
        std::ranges::reverse(found);
        return;
    }
    const auto slowness = [](const Reader& reader) { return -reader.rate; };
    sort_few(std::span(found), slowness);
    sort_equal(std::span(found), slowness,
               [&](const Reader& a, const Reader& b) { return room.rank(a.node) < room.rank(b.node); });
}

}  // namespace

std::vector<std::vector<NodeCache>> place_quotas(const ClusterState& state, const Problem& problem,
                                                 const CacheSplit& split, std::span<const double> rates) {
    std::vector<double> density(split.size());
    for (std::uint32_t j = 0; j < problem.jobs.size(); ++j) {
        for (const Read& read : problem.reads_of(j)) density[read.cache] += read.part * rates[j];
    }
    for (std::uint32_t i = 0; i < split.size(); ++i) density[i] /= problem.caches[i].size;
    const std::vector<std::uint32_t> order = descending(density);

    NodeRoom room(state, problem);
    std::vector<std::uint64_t> left(split.size());
    for (const std::uint32_t i : order) left[i] = static_cast<std::uint64_t>(std::max(0.0, split[i]));
    std::vector<Placed> placed;
    placed.reserve(problem.runs.size() + state.nodes.size());
    for (const std::uint32_t i : order) {
        const GroupCache& cache = problem.caches[i];
        for (const NodeCache& held : state.datasets[cache.dataset].held) {
            if (problem.group_of_node[held.node] != cache.group || held.bytes() == 0) continue;
            const NodeCache taken = room.take(held.node, held.bytes(), held.memory_bytes, held.disk_bytes);
            left[i] -= std::min(left[i], taken.bytes());
            placed.push_back({.dataset = cache.dataset, .cache = taken});
        }
    }
    const auto take = [&](std::uint32_t i, std::uint32_t node, std::uint64_t bytes, std::uint64_t memory_max = kAny,
                          std::uint64_t disk_max = kAny) {
        if (state.datasets[problem.caches[i].dataset].is_held_on(node)) return;
        const NodeCache taken = room.take(node, std::min(bytes, left[i]), memory_max, disk_max);
        if (taken.bytes() == 0) return;
        left[i] -= taken.bytes();
        placed.push_back({.dataset = problem.caches[i].dataset, .cache = taken});
    };
    // Cached bytes stay where they are, even if other datasets want the room.
    for (const std::uint32_t i : order) {
        const GroupCache& cache = problem.caches[i];
        if (cache.cached <= 0) continue;
        std::vector<NodeCache> cached = state.datasets[cache.dataset].cached;
        std::erase_if(cached, [&](const NodeCache& piece) { return problem.group_of_node[piece.node] != cache.group; });
        std::ranges::sort(cached, {}, [&](const NodeCache& piece) { return room.rank(piece.node); });
        for (const NodeCache& piece : cached) take(i, piece.node, piece.bytes(), piece.memory_bytes, piece.disk_bytes);
    }
    std::vector<Reader> readers;
    std::vector<double> rate_at(state.nodes.size(), -1);
    for (const std::uint32_t i : order) {
        if (left[i] == 0) continue;
        find_readers(problem, problem.caches[i], rates, room, rate_at, readers);
        double rate_left = 0;
        for (const Reader& reader : readers) rate_left += reader.rate;
        for (const Reader& reader : readers) {
            const double part = rate_left > 0 ? std::min(1.0, reader.rate / rate_left) : 1;
            take(i, reader.node, rounded_up(part * static_cast<double>(left[i])));
            rate_left -= reader.rate;
        }
        for (const Reader& reader : readers) {
            if (left[i] == 0) break;
            take(i, reader.node, left[i]);
        }
    }
    for (const std::uint32_t i : order) {
        if (left[i] == 0) continue;
        while (left[i] > 0) {
            const auto node = room.widest(problem.caches[i].group);
            // Where its quota is held, the dataset gets no more, so the rest finds no room.
            if (!node || state.datasets[problem.caches[i].dataset].is_held_on(*node)) break;
            take(i, *node, left[i]);
        }
    }
    return by_dataset(placed, state.datasets.size(), state.nodes.size());
}

CacheSplit split_of(const Problem& problem, std::span<const std::vector<NodeCache>> quotas) {
    CacheSplit bytes(problem.caches.size());
    for (std::uint32_t i = 0; i < quotas.size(); ++i) {
        for (const NodeCache& quota : quotas[i]) {
            bytes[problem.cache_on(i, quota.node)] += static_cast<double>(quota.bytes());
        }
    }
    return bytes;
}

}  // namespace larder::allocator
