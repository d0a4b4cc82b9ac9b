#include "scheduler/placement/pods.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace larder::scheduler {
namespace {

constexpr std::uint32_t kStepsMax = 20'000;

// Packs all pods into the given nodes, by depth-first search: the largest pod first, into the fullest node that fits.
class Packing {
public:
    Packing(std::span<const std::uint32_t> free, std::span<const std::uint32_t> pods_largest_first)
        : left_(free.begin(), free.end()), pods_(pods_largest_first), node_of_(pods_.size()) {}

    bool pack(std::size_t pod = 0) {
        if (pod == pods_.size()) return true;
        const std::uint32_t size = pods_[pod];
        std::vector<std::uint32_t> candidates;
        for (std::uint32_t node = 0; node < left_.size(); ++node) {
            if (left_[node] < size) continue;
            const auto same = [&](std::uint32_t other) { return left_[other] == left_[node]; };
            if (std::ranges::none_of(candidates, same)) candidates.push_back(node);
        }
        std::ranges::stable_sort(candidates, {}, [&](std::uint32_t node) { return left_[node]; });
        for (const std::uint32_t node : candidates) {
            if (++steps_ > kStepsMax) return false;
            left_[node] -= size;
            node_of_[pod] = node;
            if (pack(pod + 1)) return true;
            left_[node] += size;
        }
        return false;
    }

    std::vector<std::uint32_t> gpus_by_node() const {
        std::vector<std::uint32_t> gpus(left_.size());
        for (std::size_t pod = 0; pod < pods_.size(); ++pod) gpus[node_of_[pod]] += pods_[pod];
        return gpus;
    }

private:
    std::vector<std::uint32_t> left_;
    std::span<const std::uint32_t> pods_;
    std::vector<std::uint32_t> node_of_;
    std::uint32_t steps_ = 0;
};

}  // namespace

std::vector<PodNode> pack_pods(std::span<const std::uint32_t> free, std::span<const std::uint32_t> pods) {
    std::vector<std::uint32_t> sizes(pods.begin(), pods.end());
    std::ranges::sort(sizes, std::ranges::greater{});
    const std::uint64_t wanted = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
    std::uint64_t available = 0;
    // The `count` nodes with the most GPUs hold whatever any other `count` nodes hold.
    for (std::size_t count = 1; count <= std::min(free.size(), sizes.size()); ++count) {
        available += free[count - 1];
        if (available < wanted) continue;
        Packing packing(free.first(count), sizes);
        if (!packing.pack()) continue;
        std::vector<std::uint32_t> loads = packing.gpus_by_node();
        std::ranges::sort(loads, std::ranges::greater{});
        // The largest load chooses first, so each load finds a node. From the end: the nodes with the fewest GPUs.
        std::vector<bool> used(free.size());
        std::vector<PodNode> packed;
        for (const std::uint32_t load : loads) {
            if (load == 0) continue;
            const auto enough = std::ranges::upper_bound(free, load, std::ranges::greater{});
            auto node = static_cast<std::size_t>(enough - free.begin());
            while (used[node - 1]) --node;
            std::size_t first = node - 1;  // the first of the unused nodes with equally many GPUs
            for (std::size_t at = first; at-- > 0 && free[at] == free[node - 1];) {
                if (!used[at]) first = at;
            }
            used[first] = true;
            packed.push_back({.node = static_cast<std::uint32_t>(first), .gpus = load});
        }
        return packed;
    }
    return {};
}

}  // namespace larder::scheduler
