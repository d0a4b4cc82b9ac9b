#include "scheduler/placement/free_pool.h"

#include <algorithm>

#include "base/assert.h"

namespace larder::scheduler {

std::optional<Placed> FreePool::place(const PlaceRequest& request) {
    LARDER_ASSERT(!placed_.contains(request.job));
    auto placement = free_.choose(request);
    if (!placement) return std::nullopt;
    for (const NodeGpus& share : *placement) free_.set(share.node, free_.at(share.node) & ~share.gpus);
    placed_.emplace(request.job, *placement);
    return Placed{.placement = std::move(*placement), .evicted = {}};
}

bool FreePool::place_at(const PlaceRequest& request, const Placement& placement) {
    LARDER_ASSERT(!placed_.contains(request.job));
    const bool all_free = std::ranges::all_of(placement, [&](const NodeGpus& share) {
        return free_.usable(share.node) && free_.gpu_type(share.node) == request.gpu_type &&
               (free_.at(share.node) & share.gpus) == share.gpus;
    });
    if (!all_free) return false;
    for (const NodeGpus& share : placement) free_.set(share.node, free_.at(share.node) & ~share.gpus);
    placed_.emplace(request.job, placement);
    return true;
}

void FreePool::release(JobId job) {
    const auto found = placed_.find(job);
    LARDER_ASSERT(found != placed_.end());
    for (const NodeGpus& share : found->second) free_.set(share.node, free_.at(share.node) | share.gpus);
    placed_.erase(found);
}

}  // namespace larder::scheduler
