#include "allocator/node_relief.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "allocator/rate_limits.h"

namespace larder::allocator {
namespace {

constexpr double kWithinLimit = 1 - 1e-9;
constexpr std::uint32_t kNoDataset = kNoTerms;

// Bytes per second, on a node's outgoing network and on its disk.
struct Load {
    double out = 0;
    double disk = 0;
};

// The cache of a dataset on a node, or the node's free room (kNoDataset).
struct Piece {
    std::uint32_t dataset = 0;
    NodeCache cache;
    double reads = 0;  // bytes per second that are read here, for each byte cached
    double own = 0;    // thereof, by jobs on this node
    bool held = false;
};

class Relief {
public:
    Relief(const ClusterState& state, const Problem& problem, const std::vector<std::vector<NodeCache>>& quotas)
        : state_(state), problem_(problem), pieces_(state.nodes.size()), loads_(state.nodes.size()) {
        const std::vector<double> per_byte = filled_hits_per_byte(problem);
        const std::vector<double> reads = reads_by_cache(problem, problem.equal_rates, per_byte);
        std::vector<NodeCache> room(state.nodes.size());
        for (std::uint32_t n = 0; n < room.size(); ++n) {
            room[n] = {.node = n, .memory_bytes = state.nodes[n].memory_bytes, .disk_bytes = state.nodes[n].disk_bytes};
        }
        std::vector<double> own_reads(state.nodes.size());
        // Goes through the datasets in the problem's order, because ties are broken by it.
        std::uint32_t last = kNoDataset;
        for (const GroupCache& of_dataset : problem.caches) {
            const std::uint32_t i = of_dataset.dataset;
            if (std::exchange(last, i) == i) continue;
            const DatasetTerms& terms = problem.datasets[i];
            for_each_run(terms, [&](std::uint32_t j, const JobRun& run) {
                own_reads[run.node] += problem.equal_rates[j] * per_byte[j] * run.part;
            });
            for (const NodeCache& quota : quotas[i]) {
                Piece piece{.dataset = i,
                            .cache = quota,
                            .reads = reads[problem.cache_on(i, quota.node)],
                            .own = own_reads[quota.node],
                            .held = state.datasets[i].is_held_on(quota.node)};
                const auto bytes = static_cast<double>(quota.bytes());
                loads_[quota.node].out += (piece.reads - piece.own) * bytes;
                loads_[quota.node].disk += piece.reads * static_cast<double>(quota.disk_bytes);
                room[quota.node].memory_bytes -= std::min(room[quota.node].memory_bytes, quota.memory_bytes);
                room[quota.node].disk_bytes -= std::min(room[quota.node].disk_bytes, quota.disk_bytes);
                pieces_[quota.node].push_back(piece);
            }
            for_each_run(terms, [&](std::uint32_t, const JobRun& run) { own_reads[run.node] = 0; });
        }
        for (std::uint32_t n = 0; n < room.size(); ++n) {
            if (room[n].bytes() > 0) pieces_[n].push_back({.dataset = kNoDataset, .cache = room[n]});
        }
    }

    std::vector<std::vector<NodeCache>> run() {
        std::vector<std::vector<std::uint32_t>> partners(problem_.group_bytes.size());
        std::vector<std::uint32_t> overloaded;
        for (const std::uint32_t n : problem_.nodes_in_order) {
            if (spare(n).out < 0 || spare(n).disk < 0) {
                overloaded.push_back(n);
            } else {
                partners[problem_.group_of_node[n]].push_back(n);
            }
        }
        for (auto& of_group : partners) {
            std::ranges::stable_sort(of_group, std::ranges::greater(),
                                     [&](std::uint32_t n) { return std::min(spare(n).out, spare(n).disk); });
        }
        for (const std::uint32_t n : overloaded) {
            std::vector<std::uint32_t>& of_group = partners[problem_.group_of_node[n]];
            for (const auto tier : {&NodeCache::disk_bytes, &NodeCache::memory_bytes}) {
                for (const std::uint32_t partner : of_group) {
                    if (!needs_relief(n, tier)) break;
                    exchange(n, partner, tier);
                }
            }
            std::erase_if(of_group, [&](std::uint32_t partner) { return is_full(partner); });
        }
        return take();
    }

private:
    using Tier = std::uint64_t NodeCache::*;

    template <typename Use>
    void for_each_run(const DatasetTerms& terms, const Use& use) const {
        for (std::uint32_t j = terms.jobs_begin; j < terms.jobs_end; ++j) {
            for (const JobRun& run : problem_.runs_of(j)) use(j, run);
        }
    }

    // Returns the load that the node could still take; below 0 if it has too much.
    Load spare(std::uint32_t n) const {
        return {.out = state_.nodes[n].nic_bytes_per_second * kWithinLimit - loads_[n].out,
                .disk = state_.nodes[n].disk_read_bytes_per_second * kWithinLimit - loads_[n].disk};
    }
    bool is_full(std::uint32_t n) const {
        constexpr double kLittle = 1e-3;
        return spare(n).out < kLittle * state_.nodes[n].nic_bytes_per_second ||
               spare(n).disk < kLittle * state_.nodes[n].disk_read_bytes_per_second;
    }
    bool needs_relief(std::uint32_t n, Tier tier) const {
        return spare(n).out < 0 || (tier == &NodeCache::disk_bytes && spare(n).disk < 0);
    }

    // Exchanges bytes of one tier, the most read of node `from` for the least read of node `to`, until `from` has
    // enough relief or `to` can take no more.
    void exchange(std::uint32_t from, std::uint32_t to, Tier tier) {
        const bool on_disk = tier == &NodeCache::disk_bytes;
        while (needs_relief(from, tier)) {
            // Reads by jobs on the node itself load its disk, but not its network.
            const bool for_disk = on_disk && spare(from).disk < 0;
            const auto load = [&](const Piece& piece) { return for_disk ? piece.reads : piece.reads - piece.own; };
            const auto movable = [&](const Piece& piece) { return !piece.held && piece.cache.*tier > 0; };
            Piece* most = nullptr;
            for (Piece& piece : pieces_[from]) {
                if (!movable(piece) || piece.dataset == kNoDataset || is_held(piece.dataset, to)) continue;
                if (most == nullptr || load(piece) > load(*most)) most = &piece;
            }
            if (most == nullptr) return;
            Piece* least = nullptr;
            for (Piece& piece : pieces_[to]) {
                if (!movable(piece) || is_held(piece.dataset, from)) continue;
                if (least == nullptr || piece.reads < least->reads) least = &piece;
            }
            if (least == nullptr) return;
            const double relief_per_byte = load(*most) - least->reads;
            if (relief_per_byte <= 0) return;
            const double wanted = -(for_disk ? spare(from).disk : spare(from).out) / relief_per_byte;
            const double disk_per_byte = on_disk ? most->reads - least->reads : 0;
            const double out_per_byte = most->reads - most->own - least->reads;
            // The other node's own jobs may have read what it gives away: then less of its network is free.
            const double taken_per_byte = most->reads - least->reads + least->own;
            double most_bytes = spare(to).out / taken_per_byte;
            if (on_disk) most_bytes = std::min(most_bytes, spare(to).disk / disk_per_byte);
            if (out_per_byte < 0) most_bytes = std::min(most_bytes, std::max(0.0, spare(from).out) / -out_per_byte);
            const auto bytes = std::min({static_cast<std::uint64_t>(std::min(std::ceil(wanted), kBytes)),
                                         static_cast<std::uint64_t>(std::clamp(most_bytes, 0.0, kBytes)),
                                         most->cache.*tier, least->cache.*tier});
            if (bytes == 0) return;
            const auto moved = static_cast<double>(bytes);
            loads_[from].out -= moved * out_per_byte;
            loads_[to].out += moved * taken_per_byte;
            loads_[from].disk -= moved * disk_per_byte;
            loads_[to].disk += moved * disk_per_byte;
            most->cache.*tier -= bytes;
            least->cache.*tier -= bytes;
            const Piece there = *most;
            const Piece here = *least;
            add(to, there, tier, bytes);
            add(from, here, tier, bytes);
        }
    }

    bool is_held(std::uint32_t dataset, std::uint32_t node) const {
        return dataset != kNoDataset && !state_.datasets[dataset].held.empty() &&
               state_.datasets[dataset].is_held_on(node);
    }

    void add(std::uint32_t node, const Piece& moved, Tier tier, std::uint64_t bytes) {
        auto& pieces = pieces_[node];
        auto found = std::ranges::find(pieces, moved.dataset, &Piece::dataset);
        if (found == pieces.end()) {
            // Its own jobs' reads, if any, only lessen the load.
            pieces.push_back({.dataset = moved.dataset, .cache = {.node = node}, .reads = moved.reads});
            found = pieces.end() - 1;
        }
        found->cache.*tier += bytes;
    }

    std::vector<std::vector<NodeCache>> take() const {
        std::vector<std::vector<NodeCache>> quotas(state_.datasets.size());
        for (const auto& pieces : pieces_) {
            for (const Piece& piece : pieces) {
                const bool is_quota = piece.dataset != kNoDataset && (piece.cache.bytes() > 0 || piece.held);
                if (is_quota) quotas[piece.dataset].push_back(piece.cache);
            }
        }
        return quotas;
    }

    static constexpr double kBytes = static_cast<double>(kBytesEnd);

    const ClusterState& state_;
    const Problem& problem_;
    std::vector<std::vector<Piece>> pieces_;  // by node
    std::vector<Load> loads_;                 // by node, with every job at its equal share
};

}  // namespace

std::vector<std::vector<NodeCache>> relieve_nodes(const ClusterState& state, const Problem& problem,
                                                  const std::vector<std::vector<NodeCache>>& quotas) {
    return Relief(state, problem, quotas).run();
}

}  // namespace larder::allocator
