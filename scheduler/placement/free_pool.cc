#include "scheduler/placement/free_pool.h"

#include <algorithm>

#include "base/assert.h"

namespace larder::scheduler {
namespace {

std::uint64_t lowest(std::uint64_t bits, std::uint32_t count) {
    std::uint64_t taken = 0;
    for (; count > 0; --count) {
        const std::uint64_t bit = bits & -bits;
        taken |= bit;
        bits &= ~bit;
    }
    return taken;
}

}  // namespace

FreePool::FreePool(const GpuCluster& cluster)
    : by_free_(cluster.gpu_types.size(), ByFree(kGpusPerNodeMax + 1)), free_by_type_(cluster.gpu_types.size()) {
    for (std::uint32_t n = 0; n < cluster.nodes.size(); ++n) {
        const GpuNode& node = cluster.nodes[n];
        LARDER_ASSERT(node.gpus <= kGpusPerNodeMax && node.gpu_type < cluster.gpu_types.size());
        const std::uint64_t all = node.gpus == 64 ? ~0ULL : (1ULL << node.gpus) - 1;
        nodes_.push_back({.gpu_type = node.gpu_type, .all = all, .free = all, .usable = true});
        by_free_[node.gpu_type][node.gpus].insert(n);
        free_by_type_[node.gpu_type] += node.gpus;
        if (!node.usable) set_usable(n, false);
    }
}

void FreePool::change(std::uint32_t n, std::uint64_t free) {
    Node& node = nodes_[n];
    const auto before = static_cast<std::uint32_t>(std::popcount(node.free));
    const auto after = static_cast<std::uint32_t>(std::popcount(free));
    node.free = free;
    if (!node.usable || before == after) return;
    by_free_[node.gpu_type][before].erase(n);
    by_free_[node.gpu_type][after].insert(n);
    free_by_type_[node.gpu_type] += after;
    free_by_type_[node.gpu_type] -= before;
}

std::optional<std::uint32_t> FreePool::find_node(const PlaceRequest& request, std::uint32_t gpus_at_least) const {
    const ByFree& by_free = by_free_[request.gpu_type];
    for (std::uint32_t free = gpus_at_least; free <= kGpusPerNodeMax; ++free) {
        const std::set<std::uint32_t>& nodes = by_free[free];
        if (nodes.empty()) continue;
        for (const std::uint32_t near : request.near) {
            if (nodes.contains(near)) return near;
        }
        return *nodes.begin();
    }
    return std::nullopt;
}

std::optional<Placed> FreePool::place(const PlaceRequest& request) {
    LARDER_ASSERT(!placed_.contains(request.job));
    if (request.gpus == 0 || free_by_type_[request.gpu_type] < request.gpus) return std::nullopt;
    Placed placed;
    std::uint32_t wanted = request.gpus;
    while (wanted > 0) {
        std::optional<std::uint32_t> node = find_node(request, wanted);
        if (!node) {  // more than any has: all of the one that has most
            const ByFree& by_free = by_free_[request.gpu_type];
            const auto fullest =
                std::find_if(by_free.rbegin(), by_free.rend(), [](auto& nodes) { return !nodes.empty(); });
            node = *fullest->begin();
            for (const std::uint32_t near : request.near) {
                if (fullest->contains(near)) {
                    node = near;
                    break;
                }
            }
        }
        const std::uint64_t free = nodes_[*node].free;
        const std::uint64_t taken = lowest(free, std::min(wanted, static_cast<std::uint32_t>(std::popcount(free))));
        change(*node, free & ~taken);
        placed.placement.push_back({.node = *node, .gpus = taken});
        wanted -= static_cast<std::uint32_t>(std::popcount(taken));
    }
    std::ranges::sort(placed.placement, {}, &NodeGpus::node);
    placed_.emplace(request.job, placed.placement);
    return placed;
}

bool FreePool::place_at(const PlaceRequest& request, const Placement& placement) {
    LARDER_ASSERT(!placed_.contains(request.job));
    const bool all_free = std::ranges::all_of(placement, [&](const NodeGpus& share) {
        const Node& node = nodes_[share.node];
        return node.usable && node.gpu_type == request.gpu_type && (node.free & share.gpus) == share.gpus;
    });
    if (!all_free) return false;
    for (const NodeGpus& share : placement) change(share.node, nodes_[share.node].free & ~share.gpus);
    placed_.emplace(request.job, placement);
    return true;
}

void FreePool::release(JobId job) {
    const auto found = placed_.find(job);
    LARDER_ASSERT(found != placed_.end());
    for (const NodeGpus& share : found->second) change(share.node, nodes_[share.node].free | share.gpus);
    placed_.erase(found);
}

void FreePool::set_usable(std::uint32_t n, bool usable) {
    Node& node = nodes_[n];
    if (node.usable == usable) return;
    const auto free = static_cast<std::uint32_t>(std::popcount(node.free));
    if (usable) {
        by_free_[node.gpu_type][free].insert(n);
        free_by_type_[node.gpu_type] += free;
    } else {
        by_free_[node.gpu_type][free].erase(n);
        free_by_type_[node.gpu_type] -= free;
    }
    node.usable = usable;
}

}  // namespace larder::scheduler
