#include "allocator/quota_placement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace larder::allocator {
namespace {

class NodeRoom {
public:
    explicit NodeRoom(const ClusterState& state) : left_(state.nodes.size()) {
        std::vector<std::uint32_t> order(state.nodes.size());
        for (std::uint32_t n = 0; n < order.size(); ++n) order[n] = n;
        std::ranges::sort(order, [&](auto a, auto b) { return state.nodes[a].name < state.nodes[b].name; });
        rank_.resize(order.size());
        for (std::uint32_t i = 0; i < order.size(); ++i) rank_[order[i]] = i;
        by_rank_ = std::move(order);
        for (std::uint32_t n = 0; n < left_.size(); ++n) {
            left_[n] = {state.nodes[n].memory_bytes, state.nodes[n].disk_bytes};
            widest_.emplace(room(n), rank_[n]);
        }
    }

    std::uint64_t room(std::uint32_t node) const { return left_[node].memory_bytes + left_[node].disk_bytes; }
    std::uint32_t rank(std::uint32_t node) const { return rank_[node]; }
    std::uint32_t widest() const { return by_rank_[widest_.begin()->second]; }

    // Takes up to `bytes`, memory first, of each tier at most so much; returns what it took.
    NodeCache take(std::uint32_t node, std::uint64_t bytes, std::uint64_t memory_max, std::uint64_t disk_max) {
        widest_.erase({room(node), rank_[node]});
        NodeCache taken{.node = node};
        taken.memory_bytes = std::min({bytes, memory_max, left_[node].memory_bytes});
        taken.disk_bytes = std::min({bytes - taken.memory_bytes, disk_max, left_[node].disk_bytes});
        left_[node].memory_bytes -= taken.memory_bytes;
        left_[node].disk_bytes -= taken.disk_bytes;
        widest_.emplace(room(node), rank_[node]);
        return taken;
    }

private:
    struct Left {
        std::uint64_t memory_bytes = 0;
        std::uint64_t disk_bytes = 0;
    };
    struct Widest {
        bool operator()(const std::pair<std::uint64_t, std::uint32_t>& a,
                        const std::pair<std::uint64_t, std::uint32_t>& b) const {
            return a.first != b.first ? a.first > b.first : a.second < b.second;
        }
    };
    std::vector<Left> left_;
    std::vector<std::uint32_t> rank_, by_rank_;
    std::set<std::pair<std::uint64_t, std::uint32_t>, Widest> widest_;
};

// One dataset's quotas as they grow.
class Placing {
public:
    Placing(NodeRoom& room, std::uint64_t bytes, std::vector<NodeCache>& quotas)
        : room_(room), left_(bytes), quotas_(quotas) {}

    std::uint64_t left() const { return left_; }

    void take(std::uint32_t node, std::uint64_t bytes, std::uint64_t memory_max = kAny, std::uint64_t disk_max = kAny) {
        const NodeCache taken = room_.take(node, std::min(bytes, left_), memory_max, disk_max);
        if (taken.bytes() == 0) return;
        left_ -= taken.bytes();
        const auto found = std::ranges::find(quotas_, node, &NodeCache::node);
        if (found == quotas_.end()) {
            quotas_.push_back(taken);
        } else {
            found->memory_bytes += taken.memory_bytes;
            found->disk_bytes += taken.disk_bytes;
        }
    }

private:
    static constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();

    NodeRoom& room_;
    std::uint64_t left_;
    std::vector<NodeCache>& quotas_;
};

// The nodes where the dataset's jobs run, with the rate they read at there, fastest first.
std::vector<std::pair<double, std::uint32_t>> readers(const ClusterState& state, const Problem& problem,
                                                      std::uint32_t dataset, std::span<const double> rates,
                                                      const NodeRoom& room) {
    std::vector<std::pair<double, std::uint32_t>> found;
    const DatasetTerms& of = problem.datasets[dataset];
    for (std::uint32_t j = of.jobs_begin; j < of.jobs_end; ++j) {
        const auto& placement = state.jobs[problem.jobs[j].job].placement;
        std::uint32_t gpus = 0;
        for (const GpuShare& share : placement) gpus += share.gpus;
        for (const GpuShare& share : placement) {
            found.emplace_back(rates[j] * (gpus > 0 ? static_cast<double>(share.gpus) / gpus
                                                    : 1.0 / static_cast<double>(placement.size())),
                               share.node);
        }
    }
    std::ranges::sort(found, {}, [](const auto& entry) { return entry.second; });
    std::size_t kept = 0;
    for (const auto& entry : found) {
        if (kept > 0 && found[kept - 1].second == entry.second) {
            found[kept - 1].first += entry.first;
        } else {
            found[kept++] = entry;
        }
    }
    found.resize(kept);
    std::ranges::sort(found, [&](const auto& a, const auto& b) {
        return a.first != b.first ? a.first > b.first : room.rank(a.second) < room.rank(b.second);
    });
    return found;
}

}  // namespace

std::vector<std::vector<NodeCache>> place_quotas(const ClusterState& state, const Problem& problem,
                                                 const CacheSplit& split, std::span<const double> rates) {
    std::vector<double> density(split.size());
    for (std::uint32_t i = 0; i < split.size(); ++i) {
        const DatasetTerms& of = problem.datasets[i];
        for (std::uint32_t j = of.jobs_begin; j < of.jobs_end; ++j) density[i] += rates[j];
        if (of.size > 0) density[i] /= of.size;
    }
    std::vector<std::uint32_t> order = problem.datasets_by_name;
    std::ranges::stable_sort(order, [&](std::uint32_t a, std::uint32_t b) { return density[a] > density[b]; });

    NodeRoom room(state);
    std::vector<std::vector<NodeCache>> quotas(split.size());
    std::vector<Placing> placings;
    placings.reserve(order.size());
    for (const std::uint32_t i : order) {
        placings.emplace_back(room, static_cast<std::uint64_t>(std::floor(std::max(0.0, split[i]))), quotas[i]);
    }
    // What lies somewhere stays there, whoever else would like the room.
    for (std::size_t k = 0; k < order.size(); ++k) {
        std::vector<NodeCache> there = state.datasets[order[k]].cached;
        std::ranges::sort(there, {}, [&](const NodeCache& at) { return room.rank(at.node); });
        for (const NodeCache& at : there) placings[k].take(at.node, at.bytes(), at.memory_bytes, at.disk_bytes);
    }
    for (std::size_t k = 0; k < order.size(); ++k) {
        if (placings[k].left() == 0) continue;
        const auto nodes = readers(state, problem, order[k], rates, room);
        double rate_left = 0;
        for (const auto& [rate, node] : nodes) rate_left += rate;
        for (const auto& [rate, node] : nodes) {
            const double part = rate_left > 0 ? rate / rate_left : 1;
            placings[k].take(node,
                             static_cast<std::uint64_t>(std::ceil(part * static_cast<double>(placings[k].left()))));
            rate_left -= rate;
        }
        for (const auto& [rate, node] : nodes) placings[k].take(node, placings[k].left());
    }
    for (Placing& placing : placings) {
        while (placing.left() > 0 && !state.nodes.empty() && room.room(room.widest()) > 0) {
            placing.take(room.widest(), placing.left());
        }
    }
    for (auto& of_dataset : quotas) std::ranges::sort(of_dataset, {}, &NodeCache::node);
    return quotas;
}

}  // namespace larder::allocator
