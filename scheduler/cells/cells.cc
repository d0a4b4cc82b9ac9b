#include "scheduler/cells/cells.h"

#include <algorithm>
#include <tuple>

#include "base/assert.h"

namespace larder::scheduler {
namespace {

constexpr JobId kNoJob = std::numeric_limits<JobId>::max();

Result<std::vector<std::uint32_t>> nodes_of(const HierarchyConfig& hierarchy, const GpuCluster& cluster,
                                            const std::unordered_map<std::string_view, std::uint32_t>& by_name) {
    std::vector<std::uint32_t> nodes;
    nodes.reserve(hierarchy.nodes.size());
    for (const std::string& name : hierarchy.nodes) {
        const auto refuse = [&](const std::string& why) {
            return fail(ErrorCode::invalid_argument,
                        "cells: node \"" + name + "\" of hierarchy \"" + hierarchy.name + "\" " + why);
        };
        const auto found = by_name.find(name);
        if (found == by_name.end()) return refuse("is not in the cluster");
        const GpuNode& node = cluster.nodes[found->second];
        const std::uint32_t gpus = hierarchy.gpus_in(hierarchy.node_level);
        if (node.gpus != gpus) {
            return refuse("has " + std::to_string(node.gpus) + " GPUs in the cluster: expected " +
                          std::to_string(gpus));
        }
        if (cluster.gpu_types[node.gpu_type] != hierarchy.gpu_type) {
            return refuse("has GPUs of type \"" + cluster.gpu_types[node.gpu_type] + "\" in the cluster: expected \"" +
                          hierarchy.gpu_type + "\"");
        }
        nodes.push_back(found->second);
    }
    return nodes;
}

}  // namespace

Cells::Cells(const CellConfig& config, const GpuCluster& cluster)
    : locations_(cluster.nodes.size()), node_gpus_at_most_(cluster.gpu_types.size()), pool_(cluster) {
    for (const VirtualClusterConfig& owner : config.virtual_clusters) cluster_names_.push_back(owner.name);
    for (std::uint32_t h = 0; h < config.hierarchies.size(); ++h) hierarchies_.emplace_back(config, h);
    named_ = config.hierarchies;
    scarce_.resize(hierarchies_.size());
    for (const GpuNode& node : cluster.nodes) {
        opportunistic_.emplace_back(node.gpus, kNoJob);
        node_gpus_at_most_[node.gpu_type] = std::max(node_gpus_at_most_[node.gpu_type], node.gpus);
    }
}

Result<std::unique_ptr<Cells>> Cells::create(const CellConfig& config, const GpuCluster& cluster,
                                             std::span<const std::string> tenants) {
    std::unordered_map<std::string_view, std::uint32_t> by_name;
    for (std::uint32_t n = 0; n < cluster.nodes.size(); ++n) by_name.emplace(cluster.nodes[n].name, n);
    std::unique_ptr<Cells> cells(new Cells(config, cluster));
    std::vector<bool> seen(cluster.nodes.size());
    for (std::uint32_t h = 0; h < config.hierarchies.size(); ++h) {
        auto nodes = nodes_of(config.hierarchies[h], cluster, by_name);
        if (!nodes) return std::unexpected(nodes.error());
        for (std::uint32_t n = 0; n < nodes->size(); ++n) {
            cells->locations_[(*nodes)[n]] = {.hierarchy = h, .node = n};
            seen[(*nodes)[n]] = true;
        }
        cells->type_of_.push_back(cluster.nodes[nodes->front()].gpu_type);
        cells->nodes_.push_back(std::move(*nodes));
    }
    for (std::uint32_t n = 0; n < cluster.nodes.size(); ++n) {
        if (!seen[n]) {
            return fail(ErrorCode::invalid_argument,
                        "cells: node \"" + cluster.nodes[n].name + "\" of the cluster is in no hierarchy");
        }
        if (!cluster.nodes[n].usable) cells->at(cells->locations_[n]).set_bad(cells->locations_[n].node, true);
    }
    for (std::uint32_t t = 0; t < tenants.size(); ++t) cells->name_tenant(t, tenants[t]);
    cells->settle();
    return cells;
}

void Cells::name_tenant(std::uint32_t tenant, std::string_view name) {
    if (tenant >= cluster_by_tenant_.size()) cluster_by_tenant_.resize(tenant + 1, kNone);
    const auto found = std::ranges::find(cluster_names_, name);
    cluster_by_tenant_[tenant] =
        found == cluster_names_.end() ? kNone : static_cast<std::uint32_t>(found - cluster_names_.begin());
}

std::uint32_t Cells::cluster_of_tenant(std::uint32_t tenant) const {
    return tenant < cluster_by_tenant_.size() ? cluster_by_tenant_[tenant] : kNone;
}

std::optional<Placed> Cells::place(const PlaceRequest& request) {
    LARDER_ASSERT(!jobs_.contains(request.job) && request.gpu_type < node_gpus_at_most_.size());
    if (request.opportunistic) {
        auto placement = pool_.choose(request);
        if (!placement) return std::nullopt;
        run_opportunistic(request.job, *placement);
        add(request, *placement);
        return Placed{.placement = std::move(*placement), .evicted = {}};
    }
    const std::uint32_t cluster = cluster_of_tenant(request.tenant);
    if (cluster == kNone) return std::nullopt;
    auto placement = take(cluster, request);
    if (!placement) return std::nullopt;
    std::vector<JobId> evicted = opportunistic_on(*placement);
    for (const JobId id : evicted) forget(id);
    add(request, *placement);
    settle();
    return Placed{.placement = std::move(*placement), .evicted = std::move(evicted)};
}

bool Cells::place_at(const PlaceRequest& request, const Placement& placement) {
    LARDER_ASSERT(!jobs_.contains(request.job));
    const bool all_free = !placement.empty() && std::ranges::all_of(placement, [&](const NodeGpus& share) {
        return share.node < locations_.size() && pool_.usable(share.node) &&
               pool_.gpu_type(share.node) == request.gpu_type && (pool_.at(share.node) & share.gpus) == share.gpus;
    });
    if (!all_free) return false;
    const std::uint32_t cluster = cluster_of_tenant(request.tenant);
    if (!request.opportunistic && cluster == kNone) return false;
    std::vector<HierarchyCell> former_cells = cells_named(request.cells);
    if (request.opportunistic) {
        run_opportunistic(request.job, placement);
    } else {
        bind_again(cluster, former_cells);
        if (!claim_at(cluster, placement)) {
            settle();
            return false;
        }
    }
    add(request, placement).former_cells = std::move(former_cells);
    settle();
    return true;
}

void Cells::release(JobId id) {
    LARDER_ASSERT(jobs_.contains(id));
    forget(id);
    settle();
}

void Cells::set_usable(std::uint32_t node, bool usable) {
    pool_.set_usable(node, usable);
    at(locations_[node]).set_bad(locations_[node].node, !usable);
    settle();
}

bool Cells::set_opportunistic(JobId id, bool opportunistic) {
    Job& job = jobs_.at(id);
    if (job.opportunistic == opportunistic) return true;
    bool done = true;
    if (opportunistic) {
        demote(id, job);
    } else {
        done = promote(job);
    }
    settle();
    return done;
}

std::uint32_t Cells::owned_gpus(std::uint32_t tenant, std::uint32_t gpu_type) const {
    const std::uint32_t cluster = cluster_of_tenant(tenant);
    if (cluster == kNone) return 0;
    std::uint32_t gpus = 0;
    for (std::uint32_t h = 0; h < hierarchies_.size(); ++h) {
        if (type_of_[h] != gpu_type) continue;
        const SharedHierarchy& shared = hierarchies_[h];
        for (std::uint32_t root = shared.first_of(cluster); root < shared.end_of(cluster); ++root) {
            gpus += shared.cells().gpus_in(shared.root(root).level);
        }
    }
    return gpus;
}

Cells::Job& Cells::add(const PlaceRequest& request, Placement placement) {
    return jobs_
        .emplace(request.job, Job{.tenant = request.tenant,
                                  .cluster = cluster_of_tenant(request.tenant),
                                  .gpu_type = request.gpu_type,
                                  .opportunistic = request.opportunistic,
                                  .placement = std::move(placement)})
        .first->second;
}

// Removes a running job and frees its GPUs.
void Cells::forget(JobId id) {
    const auto found = jobs_.find(id);
    if (found->second.opportunistic) {
        stop_opportunistic(found->second.placement);
    } else {
        drop(found->second.placement);
    }
    jobs_.erase(found);
}

void Cells::hold(std::uint32_t node, std::uint64_t gpus) {
    at(locations_[node]).hold(locations_[node].node, gpus);
    update_free(node);
}

void Cells::drop(const Placement& placement) {
    for (const NodeGpus& share : placement) {
        at(locations_[share.node]).drop(locations_[share.node].node, share.gpus);
        update_free(share.node);
    }
}

void Cells::update_free(std::uint32_t node) {
    const NodeLocation location = locations_[node];
    const NodeUse& use = hierarchies_[location.hierarchy].use(location.node);
    const std::uint64_t all = lowest_bits(~0ULL, hierarchies_[location.hierarchy].cells().node_gpus());
    pool_.set(node, all & ~(use.held | use.opportunistic));
}

void Cells::run_opportunistic(JobId id, const Placement& placement) {
    for (const NodeGpus& share : placement) {
        at(locations_[share.node]).add_opportunistic(locations_[share.node].node, share.gpus);
        for (std::uint64_t bits = share.gpus; bits != 0; bits &= bits - 1) {
            opportunistic_[share.node][static_cast<std::size_t>(std::countr_zero(bits))] = id;
        }
        update_free(share.node);
    }
}

void Cells::stop_opportunistic(const Placement& placement) {
    for (const NodeGpus& share : placement) {
        at(locations_[share.node]).remove_opportunistic(locations_[share.node].node, share.gpus);
        for (std::uint64_t bits = share.gpus; bits != 0; bits &= bits - 1) {
            opportunistic_[share.node][static_cast<std::size_t>(std::countr_zero(bits))] = kNoJob;
        }
        update_free(share.node);
    }
}

// Returns the jobs in the order of their GPUs.
std::vector<JobId> Cells::opportunistic_on(const Placement& placement) const {
    std::vector<JobId> found;
    for (const NodeGpus& share : placement) {
        const NodeLocation location = locations_[share.node];
        std::uint64_t bits = share.gpus & hierarchies_[location.hierarchy].use(location.node).opportunistic;
        for (; bits != 0; bits &= bits - 1) {
            const JobId id = opportunistic_[share.node][static_cast<std::size_t>(std::countr_zero(bits))];
            if (std::ranges::find(found, id) == found.end()) found.push_back(id);
        }
    }
    return found;
}

void Cells::settle() {
    unbind_idle();
    for (SharedHierarchy& hierarchy : hierarchies_) hierarchy.bind_bad_cells();
}

std::vector<VirtualCellState> Cells::virtual_cells() const {
    std::vector<VirtualCellState> states;
    for (std::uint32_t h = 0; h < hierarchies_.size(); ++h) {
        for (std::uint32_t c = 0; c < cluster_names_.size(); ++c) {
            for (std::uint32_t root = hierarchies_[h].first_of(c); root < hierarchies_[h].end_of(c); ++root) {
                states.push_back({.cluster = c, .hierarchy = h, .cell = hierarchies_[h].root(root)});
            }
        }
    }
    return states;
}

std::vector<DoomedCells> Cells::doomed_cells() const {
    std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> counts;
    for (const VirtualCellState& state : virtual_cells()) {
        if (state.cell.doomed) ++counts[{state.cluster, state.hierarchy, state.cell.level}];
    }
    std::vector<DoomedCells> doomed;
    for (const auto& [key, count] : counts) {
        const auto [cluster, hierarchy, level] = key;
        doomed.push_back({.tenant = cluster_names_[cluster],
                          .hierarchy = named_[hierarchy].name,
                          .level = std::string(named_[hierarchy].level_name(level)),
                          .count = count});
    }
    return doomed;
}

bool Cells::sound() const {
    std::vector<NodeUse> used(locations_.size());
    for (const auto& [id, job] : jobs_) {
        for (const NodeGpus& share : job.placement) {
            const NodeLocation location = locations_[share.node];
            std::uint64_t& into = job.opportunistic ? used[share.node].opportunistic : used[share.node].held;
            if ((into & share.gpus) != 0) return false;
            into |= share.gpus;
            const std::uint64_t owned = hierarchies_[location.hierarchy].gpus_owned(job.cluster, location.node);
            if (!job.opportunistic && (owned & share.gpus) != share.gpus) return false;
        }
    }
    for (std::uint32_t n = 0; n < locations_.size(); ++n) {
        const NodeUse& use = hierarchies_[locations_[n].hierarchy].use(locations_[n].node);
        if (use.held != used[n].held || use.opportunistic != used[n].opportunistic) return false;
        if ((pool_.at(n) & (use.held | use.opportunistic)) != 0) return false;
        if (pool_.usable(n) == hierarchies_[locations_[n].hierarchy].cells().is_bad(locations_[n].node)) return false;
        if ((use.held & use.opportunistic) != 0) return false;
    }
    return std::ranges::all_of(hierarchies_, [](const SharedHierarchy& hierarchy) { return hierarchy.sound(); });
}

}  // namespace larder::scheduler
