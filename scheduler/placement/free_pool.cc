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
    for (const GpuNode& node : cluster.nodes) {
        if (is_open_) by_name_[node.name].push_back(static_cast<std::uint32_t>(nodes_.size()));
        nodes_.push_back({.name = node.name, .gpus = node.gpus, .taken = 0, .kept = {}});
    }
}

std::span<const std::uint32_t> FreePool::machine_of(const std::uint32_t& node) const {
    if (!is_open_) return {&node, 1};
    return by_name_.at(nodes_[node].name);
}

FreePool::Machine FreePool::count_machine(std::span<const std::uint32_t> nodes) const {
    Machine machine;
    for (const std::uint32_t n : nodes) {
        machine.gpus += nodes_[n].gpus;
        machine.used += static_cast<std::uint32_t>(std::popcount(nodes_[n].taken));
    }
    return machine;
}

// Counts the free GPUs: of a machine that was made smaller as many as it has left, whatever their numbers.
void FreePool::update_free(std::uint32_t node) {
    const std::span<const std::uint32_t> machine = machine_of(node);
    const std::uint32_t used = count_machine(machine).used;
    for (const std::uint32_t n : machine) {
        free_.set(n, lowest_bits(~nodes_[n].taken, nodes_[n].gpus - std::min(used, nodes_[n].gpus)));
    }
}

void FreePool::set_node(std::uint32_t node, const GpuNode& now) {
    LARDER_ASSERT(is_open_ && node <= nodes_.size());
    const bool is_new = node == nodes_.size();
    if (is_new) nodes_.emplace_back();
    if (is_new || nodes_[node].name != now.name) {
        if (!is_new) {
            const auto former = by_name_.find(nodes_[node].name);
            std::erase(former->second, node);
            if (former->second.empty()) by_name_.erase(former);
        }
        by_name_[now.name].push_back(node);
        nodes_[node].name = now.name;
        nodes_[node].kept.clear();
    }
    nodes_[node].gpus = now.gpus;
    free_.set_node(node, now, 0);
    update_free(node);
    note_kept(node);
    GpuNode idle = now;
    idle.usable = true;
    idle_.set_node(node, idle, lowest_bits(~0ULL, now.gpus));
}

void FreePool::note_kept(std::uint32_t node) {
    const std::span<const std::uint32_t> machine = machine_of(node);
    const Machine count = count_machine(machine);
    if (count.used <= count.gpus) return;
    for (const std::uint32_t n : machine) nodes_[n].kept.clear();
    for (const auto& [job, taken] : placed_) {
        for (const NodeGpus& share : taken.placement) {
            if (std::ranges::find(machine, share.node) == machine.end()) continue;
            nodes_[share.node].kept.emplace_back(job, share.gpus);
        }
    }
}

bool FreePool::is_kept(JobId job, const NodeGpus& share) const {
    return std::ranges::any_of(nodes_[share.node].kept, [&](const std::pair<JobId, std::uint64_t>& kept) {
        return kept.first == job && (share.gpus & ~kept.second) == 0;
    });
}

bool FreePool::only_kept_jobs_on(std::uint32_t node) const {
    return std::ranges::all_of(machine_of(node), [&](std::uint32_t n) {
        std::uint64_t others = nodes_[n].taken;
        for (const auto& [job, _] : nodes_[n].kept) {
            const auto at = placed_.find(job);
            if (at == placed_.end()) continue;
            for (const NodeGpus& share : at->second.placement) {
                if (share.node == n && is_kept(job, share)) others &= ~share.gpus;
            }
        }
        return others == 0;
    });
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
        if (is_free(job, taken.placement, false)) {
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
    if (placement.empty() || !may_use || !is_free(request.job, placement, request.runs_there)) return false;
    take(request, placement);
    if (is_open_ && request.runs_there) {
        for (const NodeGpus& share : placement) note_kept(share.node);
    }
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

// True if no other job has these GPUs. A job of an open cluster needs room on the machine, too, unless it was there
// when the machine got fewer GPUs, and no job has come since.
bool FreePool::is_free(JobId job, const Placement& placement, bool runs_there) const {
    return std::ranges::all_of(placement, [&](const NodeGpus& share) {
        const Node& node = nodes_[share.node];
        if ((node.taken & share.gpus) != 0) return false;
        if (!is_open_) return node.has(share.gpus);
        const Machine machine = count_machine(machine_of(share.node));
        return runs_there || machine.used + share.count() <= machine.gpus ||
               (is_kept(job, share) && only_kept_jobs_on(share.node));
    });
}

void FreePool::take(const PlaceRequest& request, const Placement& placement) {
    put(request.job, {.placement = placement, .arrival = arrivals_++, .opportunistic = request.opportunistic});
}

void FreePool::put(JobId job, Taken taken) {
    for (const NodeGpus& share : taken.placement) {
        nodes_[share.node].taken |= share.gpus;
        update_free(share.node);
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
        update_free(share.node);
    }
    if (taken.opportunistic) opportunistic_.erase({taken.arrival, job});
    return taken;
}

}  // namespace larder::scheduler
