#include "scheduler/placement/free_pool.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/assert.h"

namespace larder::scheduler {

namespace {

GpuCluster usable(GpuCluster cluster) {
    for (GpuNode& node : cluster.nodes) node.usable = true;
    return cluster;
}

}  // namespace

FreePool::FreePool(const GpuCluster& cluster) : is_open_(cluster.is_open), free_(cluster), idle_(usable(cluster)) {
    nodes_.reserve(cluster.nodes.size());
    for (const GpuNode& node : cluster.nodes) nodes_.push_back({.gpus = node.gpus});
}

std::uint64_t FreePool::Node::free() const {
    const auto used = static_cast<std::uint32_t>(std::popcount(taken));
    return lowest_bits(~taken, gpus - std::min(used, gpus));
}

void FreePool::set_node(std::uint32_t node, const GpuNode& now) {
    LARDER_ASSERT(is_open_ && node <= nodes_.size());
    if (node == nodes_.size()) nodes_.emplace_back();
    nodes_[node].gpus = now.gpus;
    free_.set_node(node, now, nodes_[node].free());
    GpuNode idle = now;
    idle.usable = true;
    idle_.set_node(node, idle, lowest_bits(~0ULL, now.gpus));
}

Result<void> FreePool::check(const PlaceRequest& request) const {
    if (request.shape != nullptr && !request.shape->needs_no_cells()) {
        return fail(
            ErrorCode::unsupported,
            "hierarchies, levels and pinned cells are those of the file of cells (scheduler.cells), and there is "
            "none");
    }
    if (idle_.choose(request)) return {};
    return fail(ErrorCode::no_space, "no nodes of the type are large enough for the gang's pods");
}

std::optional<Placed> FreePool::place(const PlaceRequest& request) {
    LARDER_ASSERT(!placed_.contains(request.job));
    auto placement = free_.choose(request);
    if (!placement) {
        if (request.opportunistic || opportunistic_.empty() || request.gpus == 0) return std::nullopt;
        return place_with_evictions(request);
    }
    take(request, *placement);
    return Placed{.placement = std::move(*placement), .evicted = {}};
}

// Places the request where GPUs come free when opportunistic jobs are evicted.
std::optional<Placed> FreePool::place_with_evictions(const PlaceRequest& request) {
    std::vector<std::pair<JobId, Taken>> released;
    std::vector<JobId> last_first;
    last_first.reserve(opportunistic_.size());
    for (const auto& [arrival, job] : opportunistic_) last_first.push_back(job);
    std::ranges::reverse(last_first);
    for (const JobId job : last_first) {
        const bool enough = free_.count(request.gpu_type) >= request.gpus;
        if (enough && (request.pods().empty() || free_.choose(request))) break;
        if (free_.gpu_type(placed_.at(job).placement.front().node) != request.gpu_type) continue;
        released.emplace_back(job, release_gpus(job));
    }
    std::optional<Placed> placed;
    if (auto placement = free_.choose(request)) {
        take(request, *placement);
        placed = Placed{.placement = std::move(*placement), .evicted = {}};
    }
    // Jobs whose GPUs are not needed after all stay.
    std::ranges::reverse(released);
    for (auto& [job, taken] : released) {
        if (is_still_free(taken.placement, placed)) {
            put(job, std::move(taken));
        } else {
            placed->evicted.push_back(job);
        }
    }
    return placed;
}

bool FreePool::place_at(const PlaceRequest& request, const Placement& placement) {
    LARDER_ASSERT(!placed_.contains(request.job));
    const bool may_use = std::ranges::all_of(placement, [&](const NodeGpus& share) {
        return (request.runs_there || free_.usable(share.node)) && free_.gpu_type(share.node) == request.gpu_type;
    });
    if (placement.empty() || !may_use || !is_free(placement)) return false;
    take(request, placement);
    return true;
}

void FreePool::release(JobId job) {
    release_gpus(job);
}

bool FreePool::set_opportunistic(JobId job, bool opportunistic) {
    Taken& taken = placed_.at(job);
    if (taken.opportunistic == opportunistic) return true;
    if (opportunistic) return false;
    taken.opportunistic = false;
    opportunistic_.erase({taken.arrival, job});
    return true;
}

bool FreePool::is_free(const Placement& placement) const {
    return std::ranges::all_of(placement, [&](const NodeGpus& share) {
        const Node& node = nodes_[share.node];
        return (node.taken & share.gpus) == 0 && (is_open_ || node.has(share.gpus));
    });
}

// True if a job may have its former GPUs back beside what was placed since. A node that was made smaller may have more
// jobs than it has GPUs for, but takes no others.
bool FreePool::is_still_free(const Placement& former, const std::optional<Placed>& placed) const {
    if (!placed) return true;
    const auto is_elsewhere = [&](const NodeGpus& share) {
        return std::ranges::find(placed->placement, share.node, &NodeGpus::node) == placed->placement.end();
    };
    return std::ranges::all_of(former, [&](const NodeGpus& share) {
        const Node& node = nodes_[share.node];
        const auto used = static_cast<std::uint32_t>(std::popcount(node.taken | share.gpus));
        return (node.taken & share.gpus) == 0 && (is_elsewhere(share) || used <= node.gpus);
    });
}

void FreePool::take(const PlaceRequest& request, const Placement& placement) {
    put(request.job, {.placement = placement, .arrival = arrivals_++, .opportunistic = request.opportunistic});
}

void FreePool::put(JobId job, Taken taken) {
    for (const NodeGpus& share : taken.placement) {
        nodes_[share.node].taken |= share.gpus;
        free_.set(share.node, nodes_[share.node].free());
    }
    if (taken.opportunistic) opportunistic_.emplace(taken.arrival, job);
    placed_.emplace(job, std::move(taken));
}

FreePool::Taken FreePool::release_gpus(JobId job) {
    const auto found = placed_.find(job);
    LARDER_ASSERT(found != placed_.end());
    Taken taken = std::move(found->second);
    placed_.erase(found);
    for (const NodeGpus& share : taken.placement) {
        nodes_[share.node].taken &= ~share.gpus;
        free_.set(share.node, nodes_[share.node].free());
    }
    if (taken.opportunistic) opportunistic_.erase({taken.arrival, job});
    return taken;
}

}  // namespace larder::scheduler
