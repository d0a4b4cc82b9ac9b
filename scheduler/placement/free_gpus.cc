#include "scheduler/placement/free_gpus.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "scheduler/placement/gang_rate.h"
#include "scheduler/placement/pods.h"

namespace larder::scheduler {

FreeGpus::FreeGpus(const GpuCluster& cluster)
    : by_free_(cluster.gpu_types.size(), ByFree(kGpusPerNodeMax + 1)),
      count_(cluster.gpu_types.size()),
      gpus_on_largest_node_(cluster.gpu_types.size()) {
    for (std::uint32_t n = 0; n < cluster.nodes.size(); ++n) {
        const GpuNode& node = cluster.nodes[n];
        LARDER_ASSERT(node.gpus <= kGpusPerNodeMax && node.gpu_type < cluster.gpu_types.size());
        nodes_.push_back(
            {.gpu_type = node.gpu_type, .free = lowest_bits(~0ULL, node.gpus), .usable = true, .gpus = node.gpus});
        by_free_[node.gpu_type][node.gpus].insert(n);
        count_[node.gpu_type] += node.gpus;
        gpus_on_largest_node_[node.gpu_type] = std::max(gpus_on_largest_node_[node.gpu_type], node.gpus);
        if (!node.usable) set_usable(n, false);
    }
}

void FreeGpus::set(std::uint32_t n, std::uint64_t free) {
    Node& node = nodes_[n];
    const auto before = static_cast<std::uint32_t>(std::popcount(node.free));
    const auto after = static_cast<std::uint32_t>(std::popcount(free));
    node.free = free;
    if (!node.usable || before == after) return;
    by_free_[node.gpu_type][before].erase(n);
    by_free_[node.gpu_type][after].insert(n);
    count_[node.gpu_type] += after;
    count_[node.gpu_type] -= before;
}

void FreeGpus::set_usable(std::uint32_t n, bool usable) {
    Node& node = nodes_[n];
    if (node.usable == usable) return;
    const auto free = static_cast<std::uint32_t>(std::popcount(node.free));
    if (usable) {
        by_free_[node.gpu_type][free].insert(n);
        count_[node.gpu_type] += free;
    } else {
        by_free_[node.gpu_type][free].erase(n);
        count_[node.gpu_type] -= free;
    }
    node.usable = usable;
}

void FreeGpus::set_node(std::uint32_t n, const GpuNode& now, std::uint64_t free) {
    LARDER_ASSERT(n <= nodes_.size() && now.gpus <= kGpusPerNodeMax);
    if (now.gpu_type >= by_free_.size()) {
        by_free_.resize(now.gpu_type + 1, ByFree(kGpusPerNodeMax + 1));
        count_.resize(now.gpu_type + 1);
        gpus_on_largest_node_.resize(now.gpu_type + 1);
    }
    if (n == nodes_.size()) nodes_.push_back({.gpu_type = now.gpu_type, .free = 0, .usable = false, .gpus = 0});
    set_usable(n, false);
    const Node before =
        std::exchange(nodes_[n], {.gpu_type = now.gpu_type, .free = free, .usable = false, .gpus = now.gpus});
    set_usable(n, now.usable);
    gpus_on_largest_node_[now.gpu_type] = std::max(gpus_on_largest_node_[now.gpu_type], now.gpus);
    const bool is_smaller = before.gpu_type != now.gpu_type || before.gpus > now.gpus;
    if (is_smaller && before.gpus > 0 && before.gpus == gpus_on_largest_node_[before.gpu_type])
        note_largest(before.gpu_type);
}

void FreeGpus::note_largest(std::uint32_t gpu_type) {
    std::uint32_t& most = gpus_on_largest_node_[gpu_type];
    most = 0;
    for (const Node& node : nodes_) {
        if (node.gpu_type == gpu_type) most = std::max(most, node.gpus);
    }
}

// Builds one placement, node by node.
class FreeGpus::Choice {
public:
    Choice(const FreeGpus& pool, const PlaceRequest& request)
        : pool_(pool), request_(request), by_free_(pool.by_free_[request.gpu_type]), picked_(pool.nodes_.size()) {
        for (const std::uint32_t near : request.near) {
            if (near < pool.nodes_.size() && pool.usable(near) && pool.gpu_type(near) == request.gpu_type &&
                pool.at(near) != 0) {
                near_.push_back(near);
            }
        }
    }

    Placement choose(bool near_first) {
        picked_.assign(picked_.size(), false);
        most_free_ = kGpusPerNodeMax;
        at_free_count_ = kGpusPerNodeMax + 1;
        Placement placement;
        std::uint32_t wanted = request_.gpus;
        while (wanted > 0) {
            std::optional<std::uint32_t> node;
            if (near_first) node = near_node(wanted);
            if (!node) node = tightest_node(wanted);
            if (!node) node = most_free_node();
            const std::uint64_t free = pool_.at(*node);
            const std::uint64_t taken =
                lowest_bits(free, std::min(wanted, static_cast<std::uint32_t>(std::popcount(free))));
            picked_[*node] = true;
            placement.push_back({.node = *node, .gpus = taken});
            wanted -= static_cast<std::uint32_t>(std::popcount(taken));
        }
        std::ranges::sort(placement, {}, &NodeGpus::node);
        return placement;
    }

    double rate(const Placement& placement) const {
        std::uint32_t near = 0;
        for (const NodeGpus& share : placement) {
            if (std::ranges::find(near_, share.node) != near_.end()) near += share.count();
        }
        const std::uint32_t most = std::max(1u, pool_.gpus_on_largest_node_[request_.gpu_type]);
        return gang_rate(request_, static_cast<std::uint32_t>(placement.size()), (request_.gpus + most - 1) / most,
                         near);
    }

    bool near_matters() const { return !near_.empty() && request_.rate_far < 1; }

private:
    // Returns the node near the data with the fewest GPUs that are enough, or else the one with the most.
    std::optional<std::uint32_t> near_node(std::uint32_t wanted) const {
        std::optional<std::uint32_t> best;
        std::uint32_t best_free = 0;
        for (const std::uint32_t node : near_) {
            if (picked_[node]) continue;
            const auto free = static_cast<std::uint32_t>(std::popcount(pool_.at(node)));
            const bool better = best_free >= wanted ? free >= wanted && free < best_free : free > best_free;
            if (!best || better) {
                best = node;
                best_free = free;
            }
        }
        return best;
    }

    std::optional<std::uint32_t> first_unpicked(const std::set<std::uint32_t>& nodes) const {
        for (const std::uint32_t near : near_) {
            if (!picked_[near] && nodes.contains(near)) return near;
        }
        for (const std::uint32_t node : nodes) {
            if (!picked_[node]) return node;
        }
        return std::nullopt;
    }

    std::optional<std::uint32_t> tightest_node(std::uint32_t wanted) const {
        for (std::uint32_t free = wanted; free <= kGpusPerNodeMax; ++free) {
            if (by_free_[free].empty()) continue;
            if (const auto node = first_unpicked(by_free_[free])) return node;
        }
        return std::nullopt;
    }

    std::optional<std::uint32_t> most_free_node() {
        for (; most_free_ > 0; --most_free_) {
            if (at_free_count_ != most_free_) {
                at_ = by_free_[most_free_].begin();
                at_free_count_ = most_free_;
            }
            for (const std::uint32_t near : near_) {
                if (!picked_[near] && by_free_[most_free_].contains(near)) return near;
            }
            while (at_ != by_free_[most_free_].end() && picked_[*at_]) ++at_;
            if (at_ != by_free_[most_free_].end()) return *at_;
        }
        return std::nullopt;
    }

    const FreeGpus& pool_;
    const PlaceRequest& request_;
    const ByFree& by_free_;
    std::vector<bool> picked_;
    std::vector<std::uint32_t> near_;
    std::uint32_t most_free_ = kGpusPerNodeMax;
    std::uint32_t at_free_count_ = kGpusPerNodeMax + 1;  // at_ points into the set of nodes with this many free GPUs
    std::set<std::uint32_t>::const_iterator at_;
};

std::optional<Placement> FreeGpus::choose_for_pods(const PlaceRequest& request) const {
    std::vector<std::uint32_t> nodes;
    std::vector<std::uint32_t> free;
    for (std::uint32_t gpus = kGpusPerNodeMax; gpus > 0; --gpus) {
        const std::set<std::uint32_t>& with_gpus = by_free_[request.gpu_type][gpus];
        for (const std::uint32_t near : request.near) {
            if (with_gpus.contains(near)) nodes.push_back(near);
        }
        for (const std::uint32_t node : with_gpus) {
            if (std::ranges::find(request.near, node) == request.near.end()) nodes.push_back(node);
        }
        free.resize(nodes.size(), gpus);
    }
    Placement placement;
    for (const PodNode& one : pack_pods(free, request.pods())) {
        placement.push_back({.node = nodes[one.node], .gpus = lowest_bits(at(nodes[one.node]), one.gpus)});
    }
    if (placement.empty()) return std::nullopt;
    std::ranges::sort(placement, {}, &NodeGpus::node);
    return placement;
}

std::optional<Placement> FreeGpus::choose(const PlaceRequest& request) const {
    if (request.gpus == 0 || count_[request.gpu_type] < request.gpus) return std::nullopt;
    if (!request.pods().empty()) return choose_for_pods(request);
    Choice choice(*this, request);
    Placement few_nodes = choice.choose(false);
    if (!choice.near_matters()) return few_nodes;
    Placement near_data = choice.choose(true);
    return choice.rate(near_data) > choice.rate(few_nodes) ? near_data : few_nodes;
}

}  // namespace larder::scheduler
