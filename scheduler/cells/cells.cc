#include "scheduler/cells/cells.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/assert.h"
#include "scheduler/placement/gang_rate.h"

namespace larder::scheduler {
namespace {

constexpr JobId kNoJob = std::numeric_limits<JobId>::max();

// The nodes of a cluster by name and first GPU: a machine with several GPU types is several nodes.
using NodesByName = std::map<std::pair<std::string_view, std::uint32_t>, std::uint32_t>;

Result<std::vector<std::uint32_t>> nodes_of(const HierarchyConfig& hierarchy, const GpuCluster& cluster,
                                            const NodesByName& by_name) {
    std::vector<std::uint32_t> nodes;
    nodes.reserve(hierarchy.nodes.size());
    for (const std::string& name : hierarchy.nodes) {
        const auto refuse = [&](const std::string& why) {
            return fail(ErrorCode::invalid_argument,
                        "cells: node \"" + name + "\" of hierarchy \"" + hierarchy.name + "\" " + why);
        };
        const auto found = by_name.find({name, hierarchy.first_gpu});
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
    : locations_(cluster.nodes.size()), gpus_on_largest_node_(cluster.gpu_types.size()), pool_(cluster) {
    for (const VirtualClusterConfig& owner : config.virtual_clusters) {
        cluster_names_.push_back(owner.name);
        pinned_.push_back(owner.pinned);
    }
    for (std::uint32_t h = 0; h < config.hierarchies.size(); ++h) hierarchies_.emplace_back(config, h);
    configs_ = config.hierarchies;
    scarce_.resize(hierarchies_.size());
    for (const GpuNode& node : cluster.nodes) {
        opportunistic_.emplace_back(node.gpus, kNoJob);
        gpus_on_largest_node_[node.gpu_type] = std::max(gpus_on_largest_node_[node.gpu_type], node.gpus);
    }
}

Result<std::unique_ptr<Cells>> Cells::create(const CellConfig& config, const GpuCluster& cluster,
                                             std::span<const std::string> tenants) {
    NodesByName by_name;
    for (std::uint32_t n = 0; n < cluster.nodes.size(); ++n) {
        by_name.emplace(std::pair(std::string_view(cluster.nodes[n].name), cluster.nodes[n].first_gpu), n);
    }
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
    cells->update_bindings();
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
    LARDER_ASSERT(!jobs_.contains(request.job) && request.gpu_type < gpus_on_largest_node_.size());
    if (request.opportunistic) {
        auto placement = choose_opportunistic(request);
        if (!placement) return std::nullopt;
        run_opportunistic(request.job, *placement);
        add(request, *placement);
        return Placed{.placement = std::move(*placement), .evicted = {}};
    }
    const std::uint32_t cluster = cluster_of_tenant(request.tenant);
    if (cluster == kNone) return std::nullopt;
    auto placement = take(cluster, request);
    // A doomed cell may hold healthy nodes. They serve whoever asks first.
    if (!placement && unbind_doomed(request.gpu_type)) {
        placement = take(cluster, request);
        if (!placement) update_bindings();
    }
    if (!placement) return std::nullopt;
    std::vector<JobId> evicted = opportunistic_on(*placement);
    for (const JobId id : evicted) forget(id);
    add(request, *placement);
    update_bindings();
    return Placed{.placement = std::move(*placement), .evicted = std::move(evicted)};
}

bool Cells::place_at(const PlaceRequest& request, const Placement& placement) {
    LARDER_ASSERT(!jobs_.contains(request.job));
    const bool all_free = !placement.empty() && std::ranges::all_of(placement, [&](const NodeGpus& share) {
        return share.node < locations_.size() && (request.runs_there || pool_.usable(share.node)) &&
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
            update_bindings();
            return false;
        }
    }
    add(request, placement).former_cells = std::move(former_cells);
    update_bindings();
    return true;
}

void Cells::release(JobId id) {
    LARDER_ASSERT(jobs_.contains(id));
    forget(id);
    update_bindings();
}

// The nodes are those of the file of cells.
void Cells::set_node(std::uint32_t, const GpuNode&) {
    LARDER_ASSERT(false);
}

void Cells::set_usable(std::uint32_t node, bool usable) {
    pool_.set_usable(node, usable);
    at(locations_[node]).set_bad(locations_[node].node, !usable);
    update_bindings();
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
    update_bindings();
    return done;
}

std::uint32_t Cells::owned_gpus(std::uint32_t tenant, std::uint32_t gpu_type) const {
    const std::uint32_t cluster = cluster_of_tenant(tenant);
    if (cluster == kNone) return 0;
    std::uint32_t gpus = 0;
    for (std::uint32_t h = 0; h < hierarchies_.size(); ++h) {
        if (type_of_[h] != gpu_type) continue;
        const SharedHierarchy& shared = hierarchies_[h];
        for (std::uint32_t number = shared.first_of(cluster); number < shared.end_of(cluster); ++number) {
            gpus += shared.cells().gpus_in(shared.virtual_cell(number).level);
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
    pool_.set(node, all & ~(use.claimed | use.opportunistic));
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

void Cells::update_bindings() {
    unbind_idle();
    for (SharedHierarchy& hierarchy : hierarchies_) hierarchy.bind_bad_cells();
}

std::vector<VirtualCellState> Cells::virtual_cells() const {
    std::vector<VirtualCellState> states;
    for (std::uint32_t h = 0; h < hierarchies_.size(); ++h) {
        for (std::uint32_t c = 0; c < cluster_names_.size(); ++c) {
            for (std::uint32_t number = hierarchies_[h].first_of(c); number < hierarchies_[h].end_of(c); ++number) {
                states.push_back({.cluster = c, .hierarchy = h, .cell = hierarchies_[h].virtual_cell(number)});
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
                          .hierarchy = configs_[hierarchy].name,
                          .level = std::string(configs_[hierarchy].level_name(level)),
                          .count = count});
    }
    return doomed;
}

bool Cells::is_sound() const {
    std::vector<NodeUse> used(locations_.size());
    for (const auto& [id, job] : jobs_) {
        for (const NodeGpus& share : job.placement) {
            const NodeLocation location = locations_[share.node];
            std::uint64_t& into = job.opportunistic ? used[share.node].opportunistic : used[share.node].claimed;
            if ((into & share.gpus) != 0) return false;
            into |= share.gpus;
            const std::uint64_t owned = hierarchies_[location.hierarchy].gpus_owned(job.cluster, location.node);
            if (!job.opportunistic && (owned & share.gpus) != share.gpus) return false;
        }
    }
    for (std::uint32_t n = 0; n < locations_.size(); ++n) {
        const NodeUse& use = hierarchies_[locations_[n].hierarchy].use(locations_[n].node);
        if (use.claimed != used[n].claimed || use.opportunistic != used[n].opportunistic) return false;
        if ((pool_.at(n) & (use.claimed | use.opportunistic)) != 0) return false;
        if (pool_.usable(n) == hierarchies_[locations_[n].hierarchy].cells().is_bad(locations_[n].node)) return false;
        if ((use.claimed & use.opportunistic) != 0) return false;
    }
    return std::ranges::all_of(hierarchies_, [](const SharedHierarchy& hierarchy) { return hierarchy.is_sound(); });
}

std::uint32_t Cells::near_rank(const PlaceRequest& request, std::uint32_t node) {
    const auto near = std::ranges::find(request.near, node);
    return near == request.near.end() ? kNone : static_cast<std::uint32_t>(near - request.near.begin());
}

bool Cells::allows(const PlaceRequest& request, std::uint32_t h) const {
    if (type_of_[h] != request.gpu_type) return false;
    const GangShape* const shape = request.shape;
    if (shape == nullptr) return true;
    if (!shape->hierarchy.empty() && shape->hierarchy != configs_[h].name) return false;
    return shape->together.empty() || together_level(request, h) != kNone;
}

std::uint32_t Cells::together_level(const PlaceRequest& request, std::uint32_t h) const {
    if (request.shape == nullptr || request.shape->together.empty()) return kNone;
    return configs_[h].level_named(request.shape->together).value_or(kNone);
}

std::uint32_t Cells::pinned_cell(const PlaceRequest& request, std::uint32_t cluster, std::uint32_t h) const {
    if (request.shape == nullptr || request.shape->cell.empty()) return kNone;
    std::uint32_t number = hierarchies_[h].first_of(cluster);
    for (const PinnedCell& pin : pinned_[cluster]) {
        if (pin.hierarchy != h) continue;
        if (pin.name == request.shape->cell) return number;
        ++number;
    }
    return hierarchies_[h].end_of(cluster);
}

// Returns the GPUs of `from` in the cell of the level that has room for the gang and leaves the fewest GPUs over; 0:
// none has room. Levels from the node's up limit nothing on one node.
std::uint64_t Cells::within_one_cell(const Hierarchy& cells, std::uint32_t level, std::uint64_t from,
                                     std::uint64_t avoid, std::uint32_t gpus) {
    if (level >= cells.node_level()) return from;
    std::uint64_t best = 0;
    const auto key = [&](std::uint64_t part) {
        return std::pair(gpus - std::min(gpus, count_of(part & ~avoid)), count_of(part));
    };
    for (std::uint32_t index = 0; index < cells.cells_in(cells.node_level(), level); ++index) {
        const std::uint64_t part = from & cells.gpus_of({level, index});
        if (count_of(part) >= gpus && (best == 0 || key(part) < key(best))) best = part;
    }
    return best;
}

// Appends what a virtual cell offers while no job uses it, wherever it is bound.
void Cells::offer_idle(std::uint32_t h, std::uint32_t number, std::uint32_t together,
                       std::vector<NodeOffer>& into) const {
    const Hierarchy& cells = hierarchies_[h].cells();
    const VirtualCell& virtual_cell = hierarchies_[h].virtual_cell(number);
    const std::uint32_t size = cells.gpus_in(virtual_cell.level);
    std::uint32_t per_node = std::min(size, cells.node_gpus());
    if (together < cells.node_level()) per_node = std::min(per_node, cells.gpus_in(together));
    for (std::uint32_t n = 0; n < cells.node_count(virtual_cell.level); ++n) {
        into.push_back({.hierarchy = &cells,
                        .hierarchy_index = h,
                        .virtual_cell = number,
                        .level = virtual_cell.level,
                        .pinned = virtual_cell.pinned,
                        .node = n,
                        .fresh = true,
                        .gpus = per_node,
                        .without_eviction = per_node,
                        .virtual_cell_gpus = size});
    }
}

Result<void> Cells::check(const PlaceRequest& request) const {
    if (auto known = check_names(request); !known) return known;
    const std::uint32_t cluster = cluster_of_tenant(request.tenant);
    std::vector<NodeOffer> offers;
    for (std::uint32_t h = 0; h < hierarchies_.size(); ++h) {
        if (!allows(request, h)) continue;
        const SharedHierarchy& shared = hierarchies_[h];
        const Hierarchy& cells = shared.cells();
        const std::uint32_t together = together_level(request, h);
        if (request.opportunistic) {
            const std::uint32_t top = cells.levels() - 1;
            std::uint32_t gpus = cells.node_gpus();
            if (together < cells.node_level()) gpus = cells.gpus_in(together);
            for (std::uint32_t node = 0; node < cells.nodes(); ++node) {
                offers.push_back({.hierarchy = &cells,
                                  .hierarchy_index = h,
                                  .virtual_cell = node / cells.node_count(top),
                                  .level = top,
                                  .node = node,
                                  .gpus = gpus,
                                  .virtual_cell_gpus = cells.gpus_in(top)});
            }
            continue;
        }
        if (cluster == kNone) continue;
        const std::uint32_t pinned = pinned_cell(request, cluster, h);
        for (std::uint32_t number = shared.first_of(cluster); number < shared.end_of(cluster); ++number) {
            if (pinned == kNone || number == pinned) offer_idle(h, number, together, offers);
        }
    }
    if (!plan(offers, request, request.gpus, true).empty()) return {};
    const std::string where = request.opportunistic ? "no cells of the cluster" : "none of its tenant's cells";
    return fail(ErrorCode::no_space, where + " can hold the gang as it asks to be placed");
}

Result<void> Cells::check_names(const PlaceRequest& request) const {
    if (request.shape == nullptr) return {};
    const GangShape& shape = *request.shape;
    const auto unknown = [](const std::string& what, const std::string& name, const std::set<std::string>& known) {
        std::string list;
        for (const std::string& one : known) list += (list.empty() ? "" : ", ") + one;
        return fail(ErrorCode::not_found,
                    what + " \"" + name + "\" is unknown; known: " + (list.empty() ? "none" : list));
    };
    std::set<std::string> hierarchies;
    std::set<std::string> levels;
    for (const HierarchyConfig& config : configs_) {
        hierarchies.insert(config.name);
        if (!shape.hierarchy.empty() && config.name != shape.hierarchy) continue;
        for (std::uint32_t level = 1; level < config.levels_count(); ++level) {
            levels.insert(std::string(config.level_name(level)));
        }
    }
    if (!shape.hierarchy.empty() && !hierarchies.contains(shape.hierarchy)) {
        return unknown("hierarchy", shape.hierarchy, hierarchies);
    }
    if (!shape.together.empty() && !levels.contains(shape.together)) return unknown("level", shape.together, levels);
    if (shape.cell.empty()) return {};
    std::set<std::string> pins;
    const std::uint32_t cluster = cluster_of_tenant(request.tenant);
    if (cluster != kNone) {
        for (const PinnedCell& pin : pinned_[cluster]) pins.insert(pin.name);
    }
    pins.erase("");
    if (!pins.contains(shape.cell)) return unknown("its tenant's pinned cell", shape.cell, pins);
    return {};
}

bool Cells::collect(std::uint32_t cluster, const PlaceRequest& request, std::uint32_t gpus) {
    offers_.clear();
    std::uint64_t all = 0;
    bool fits_one_node = false;  // some node has enough: nodes with fewer do not matter
    for (std::uint32_t h = 0; h < hierarchies_.size(); ++h) {
        if (!allows(request, h)) continue;
        const SharedHierarchy& shared = hierarchies_[h];
        const Hierarchy& cells = shared.cells();
        const std::uint32_t together = together_level(request, h);
        const std::uint32_t pinned = pinned_cell(request, cluster, h);
        for (std::uint32_t level = 0; level < cells.levels() && !scarce_[h] && pinned == kNone; ++level) {
            all += std::uint64_t{shared.unbound(cluster, level)} * cells.gpus_in(level);
        }
        shared.list_for_gang(cluster, gpus, request.pods().size(), !scarce_[h], gang_cells_);
        for (const std::uint32_t number : gang_cells_) {
            if (pinned != kNone && number != pinned) continue;
            const VirtualCell& virtual_cell = shared.virtual_cell(number);
            if (virtual_cell.index == kNone) {
                offer_idle(h, number, together, offers_);
                continue;
            }
            const CellId cell{virtual_cell.level, virtual_cell.index};
            const std::uint64_t mask =
                virtual_cell.level >= cells.node_level() ? lowest_bits(~0ULL, cells.node_gpus()) : cells.gpus_of(cell);
            const std::size_t first_offer = offers_.size();
            std::uint32_t virtual_cell_gpus = 0;
            const std::uint32_t first = cells.first_node(cell);
            for (std::uint32_t node = first; node < first + cells.node_count(virtual_cell.level); ++node) {
                const NodeUse& use = shared.use(node);
                const std::uint64_t free =
                    within_one_cell(cells, together, mask & ~use.claimed, use.opportunistic, request.gpus);
                if (free == 0 || cells.is_bad(node)) continue;
                virtual_cell_gpus += count_of(free);
                if (fits_one_node && count_of(free) < gpus) continue;
                fits_one_node = fits_one_node || count_of(free) >= gpus;
                NodeOffer offer{.hierarchy = &cells,
                                .hierarchy_index = h,
                                .virtual_cell = number,
                                .level = virtual_cell.level,
                                .pinned = virtual_cell.pinned,
                                .node = node,
                                .fresh = false,
                                .gpus = count_of(free),
                                .without_eviction = count_of(free & ~use.opportunistic)};
                offer.near = near_rank(request, to_cluster(h, node));
                offers_.push_back(offer);
            }
            all += virtual_cell_gpus;
            for (std::size_t o = first_offer; o < offers_.size(); ++o) offers_[o].virtual_cell_gpus = virtual_cell_gpus;
        }
    }
    return all >= gpus;
}

// In hierarchies where bad nodes leave claims unserved, binds all virtual cells that can be bound: what a virtual cell
// can offer there is known only once it is bound. Returns true if there is such a hierarchy of the GPU type.
bool Cells::bind_all(std::uint32_t cluster, std::uint32_t gpu_type) {
    bool any = false;
    for (std::uint32_t h = 0; h < hierarchies_.size(); ++h) {
        SharedHierarchy& shared = hierarchies_[h];
        scarce_[h] = !shared.cells().all_served();
        if (type_of_[h] != gpu_type || !scarce_[h]) continue;
        any = true;
        for (std::uint32_t level = shared.cells().levels(); level-- > 0;) {
            while (shared.bind(cluster, level, {}) != kNone) {
            }
        }
    }
    return any;
}

// Returns true if cells of the GPU type were doomed.
bool Cells::unbind_doomed(std::uint32_t gpu_type) {
    bool any = false;
    for (std::uint32_t h = 0; h < hierarchies_.size(); ++h) {
        if (type_of_[h] != gpu_type || !hierarchies_[h].has_doomed_cells()) continue;
        any = true;
        hierarchies_[h].unbind_bad_cells();
    }
    return any;
}

void Cells::unbind_idle() {
    for (std::uint32_t h = 0; h < hierarchies_.size(); ++h) {
        hierarchies_[h].unbind_unused();
        scarce_[h] = false;
    }
}

// Plans with the last collected offers. One hierarchy takes the whole gang if it can: the network between hierarchies
// is slower. Pinned cells are left to jobs that find no other place.
std::vector<OfferTaken> Cells::plan(std::span<const NodeOffer> offers, const PlaceRequest& request, std::uint32_t gpus,
                                    bool may_cross) const {
    GangPlan best;
    const auto consider = [&](std::size_t first, std::size_t end) {
        if (first == end) return;
        const auto part = offers.subspan(first, end - first);
        const std::uint32_t together = together_level(request, part.front().hierarchy_index);
        GangPlan found = together == kNone ? plan_gang(part, gpus, request.pods())
                                           : plan_gang_within(part, together, gpus, request.pods());
        if (found.taken.empty() || (!best.taken.empty() && best.cost <= found.cost)) return;
        for (OfferTaken& taken : found.taken) taken.offer += static_cast<std::uint32_t>(first);
        best = std::move(found);
    };
    for (std::size_t first = 0; first < offers.size();) {
        const std::uint32_t hierarchy = offers[first].hierarchy_index;
        std::size_t end = first;
        std::size_t first_unpinned = first;  // pinned cells have the lowest numbers
        for (; end < offers.size() && offers[end].hierarchy_index == hierarchy; ++end) {
            if (offers[end].pinned) first_unpinned = end + 1;
        }
        consider(first_unpinned, end);
        if (first_unpinned > first) consider(first, end);
        first = end;
    }
    const bool is_together = request.shape != nullptr && !request.shape->together.empty();
    if (best.taken.empty() && may_cross && !is_together) consider(0, offers.size());
    return std::move(best.taken);
}

// Collects the free GPUs of every node that `avoid` leaves, as offers of the cells of the highest level.
template <typename Avoid>
void Cells::collect_free(const PlaceRequest& request, Avoid avoid) {
    offers_.clear();
    for (std::uint32_t h = 0; h < hierarchies_.size(); ++h) {
        if (!allows(request, h)) continue;
        const SharedHierarchy& shared = hierarchies_[h];
        const Hierarchy& cells = shared.cells();
        const std::uint32_t together = together_level(request, h);
        const std::uint32_t top = cells.levels() - 1;
        const std::uint32_t nodes_in_top = cells.node_count(top);
        for (std::uint32_t cell = 0; cell < cells.cells_at(top); ++cell) {
            const std::size_t first_offer = offers_.size();
            std::uint32_t cell_gpus = 0;
            for (std::uint32_t node = cell * nodes_in_top; node < (cell + 1) * nodes_in_top; ++node) {
                const std::uint64_t free = pool_.at(to_cluster(h, node));
                if (free == 0 || cells.is_bad(node)) continue;
                const std::uint64_t offered =
                    within_one_cell(cells, together, free & ~avoid(shared, node), 0, request.gpus);
                if (offered == 0) continue;
                cell_gpus += count_of(offered);
                offers_.push_back({.hierarchy = &cells,
                                   .hierarchy_index = h,
                                   .virtual_cell = cell,
                                   .level = top,
                                   .node = node,
                                   .gpus = count_of(offered),
                                   .without_eviction = count_of(offered),
                                   .mask = offered,
                                   .near = near_rank(request, to_cluster(h, node))});
            }
            for (std::size_t o = first_offer; o < offers_.size(); ++o) offers_[o].virtual_cell_gpus = cell_gpus;
        }
    }
}

// Returns the GPUs of a plan that collect_free() made offers for.
Placement Cells::place_free(std::span<const OfferTaken> plan) const {
    Placement placement;
    for (const OfferTaken& taken : plan) {
        const NodeOffer& offer = offers_[taken.offer];
        placement.push_back({.node = to_cluster(offer.hierarchy_index, offer.node),
                             .gpus = pick_gpus(*offer.hierarchy, offer.mask, 0, taken.gpus)});
    }
    std::ranges::sort(placement, {}, &NodeGpus::node);
    return placement;
}

// Chooses GPUs for a job without a claim, as close together as those of a job with one. Nodes without cells of jobs
// with a claim come first, then GPUs outside of such cells: the owners of these cells would evict the job.
std::optional<Placement> Cells::choose_opportunistic(const PlaceRequest& request) {
    if (request.gpus == 0 || pool_.count(request.gpu_type) < request.gpus) return std::nullopt;
    enum class From : std::uint8_t { unused_nodes, unbound_cells, anywhere };
    Placement placement;
    for (const bool across : {false, true}) {
        for (const From from : {From::unused_nodes, From::unbound_cells, From::anywhere}) {
            if (!placement.empty()) break;
            collect_free(request, [&](const SharedHierarchy& shared, std::uint32_t node) {
                if (from == From::anywhere) return std::uint64_t{0};
                const std::uint64_t bound = shared.gpus_bound(node);
                return from == From::unused_nodes && bound != 0 ? ~std::uint64_t{0} : bound;
            });
            placement = place_free(plan(offers_, request, request.gpus, across));
        }
    }
    if (placement.empty()) return std::nullopt;
    const bool free_shape = request.shape == nullptr || request.shape->is_free();
    if (request.near.empty() || request.rate_far >= 1 || !free_shape) return placement;
    auto near = pool_.choose(request);
    if (hierarchies_in(*near) > hierarchies_in(placement)) return placement;
    return rate(request, *near) > rate(request, placement) ? near : placement;
}

// Takes GPUs from the last collected offers. Empty: they do not suffice.
Placement Cells::take_few_nodes(std::uint32_t cluster, const PlaceRequest& request, std::uint32_t gpus) {
    Placement placement;
    struct Bound {
        std::uint32_t hierarchy;
        std::uint32_t virtual_cell;  // NodeOffer::virtual_cell
        std::uint32_t bound_cell;    // the number of the virtual cell that was bound
    };
    std::vector<Bound> bound;
    std::uint32_t beside = kNone;
    std::vector<std::uint32_t> near;
    for (const OfferTaken& taken : plan(offers_, request, gpus, true)) {
        const NodeOffer& offer = offers_[taken.offer];
        SharedHierarchy& shared = hierarchies_[offer.hierarchy_index];
        const Hierarchy& cells = shared.cells();
        std::uint32_t number = offer.virtual_cell;
        std::uint32_t node = offer.node;
        if (offer.fresh) {
            const auto known = std::ranges::find_if(bound, [&](const Bound& one) {
                return one.hierarchy == offer.hierarchy_index && one.virtual_cell == offer.virtual_cell;
            });
            if (known == bound.end()) {
                near.clear();
                for (const std::uint32_t n : request.near) {
                    if (n < locations_.size() && locations_[n].hierarchy == offer.hierarchy_index)
                        near.push_back(locations_[n].node);
                }
                const bool same_hierarchy = beside != kNone && locations_[beside].hierarchy == offer.hierarchy_index;
                number = shared.bind(cluster, offer.level,
                                     {.near = near, .beside = same_hierarchy ? locations_[beside].node : kNone});
                LARDER_ASSERT(number != kNone);
                bound.push_back({offer.hierarchy_index, offer.virtual_cell, number});
            } else {
                number = known->bound_cell;
            }
            node += cells.first_node({offer.level, shared.virtual_cell(number).index});
        }
        const CellId cell{offer.level, shared.virtual_cell(number).index};
        const std::uint64_t mask =
            offer.level >= cells.node_level() ? lowest_bits(~0ULL, cells.node_gpus()) : cells.gpus_of(cell);
        const NodeUse use = shared.use(node);
        const std::uint64_t free = within_one_cell(cells, together_level(request, offer.hierarchy_index),
                                                   mask & ~use.claimed, use.opportunistic, request.gpus);
        const std::uint64_t picked = pick_gpus(cells, free, use.opportunistic, taken.gpus);
        beside = to_cluster(offer.hierarchy_index, node);
        hold(beside, picked);
        placement.push_back({.node = beside, .gpus = picked});
    }
    return placement;
}

Placement Cells::take_near(std::uint32_t cluster, const PlaceRequest& request) {
    struct Near {
        std::uint32_t node;
        std::uint32_t gpus;
    };
    const auto owned = [&](std::uint32_t node) {
        const SharedHierarchy& shared = at(locations_[node]);
        if (shared.cells().is_bad(locations_[node].node)) return std::uint64_t{0};
        return shared.gpus_owned(cluster, locations_[node].node) & ~shared.use(locations_[node].node).claimed;
    };
    std::vector<Near> candidates;
    for (const std::uint32_t node : request.near) {
        if (node >= locations_.size() || type_of_[locations_[node].hierarchy] != request.gpu_type) continue;
        SharedHierarchy& shared = at(locations_[node]);
        std::uint32_t gpus = shared.cells().node_gpus();
        if (!shared.cell_to_cover(cluster, locations_[node].node)) {
            shared.cover_node(cluster, locations_[node].node);
            gpus = count_of(owned(node));
            unbind_idle();
        }
        if (gpus > 0) candidates.push_back({.node = node, .gpus = gpus});
        if (gpus == request.gpus) break;  // no other candidate ranks before an exact fit
    }
    // Candidates with enough GPUs come first, the fewest GPUs first; then the others, the most GPUs first.
    const auto ranks_before = [&](const Near& a, const Near& b) {
        const bool enough = a.gpus >= request.gpus;
        if (enough != (b.gpus >= request.gpus)) return enough;
        return enough ? a.gpus < b.gpus : a.gpus > b.gpus;
    };
    std::ranges::stable_sort(candidates, ranks_before);
    Placement placement;
    std::uint32_t wanted = request.gpus;
    for (const Near& near : candidates) {
        if (wanted == 0) break;
        SharedHierarchy& shared = at(locations_[near.node]);
        shared.cover_node(cluster, locations_[near.node].node);
        const std::uint64_t available = owned(near.node);
        const std::uint32_t gpus = std::min(wanted, count_of(available));
        if (gpus == 0) continue;
        const std::uint64_t picked =
            pick_gpus(shared.cells(), available, shared.use(locations_[near.node].node).opportunistic, gpus);
        hold(near.node, picked);
        placement.push_back({.node = near.node, .gpus = picked});
        wanted -= gpus;
    }
    if (wanted == 0) return placement;
    bind_all(cluster, request.gpu_type);
    if (!collect(cluster, request, wanted)) {
        release_gpus(placement);
        return {};
    }
    const Placement rest = take_few_nodes(cluster, request, wanted);
    placement.insert(placement.end(), rest.begin(), rest.end());
    return placement;
}

// Takes GPUs of one healthy cell. bind_all() may have spent the healthy nodes on larger cells with bad nodes. Empty:
// there is no such cell.
Placement Cells::take_healthy_cell(std::uint32_t cluster, const PlaceRequest& request) {
    for (std::uint32_t h = 0; h < hierarchies_.size(); ++h) {
        SharedHierarchy& shared = hierarchies_[h];
        if (!allows(request, h) || shared.cells().all_served()) continue;
        for (std::uint32_t level = 0; level < shared.cells().levels(); ++level) {
            if (shared.cells().gpus_in(level) < request.gpus) continue;
            if (shared.bind(cluster, level, {.near = {}, .only_healthy = true}) == kNone) continue;
            for (std::uint32_t other = 0; other < hierarchies_.size(); ++other) {
                scarce_[other] = other == h || !hierarchies_[other].cells().all_served();
            }
            const bool enough = collect(cluster, request, request.gpus);
            Placement placement = enough ? take_few_nodes(cluster, request, request.gpus) : Placement{};
            unbind_idle();
            if (!placement.empty()) return placement;
        }
    }
    return {};
}

void Cells::release_gpus(const Placement& placement) {
    drop(placement);
    unbind_idle();
}

double Cells::rate(const PlaceRequest& request, const Placement& placement) const {
    std::vector<std::uint32_t> nodes;
    std::uint32_t near = 0;
    for (const NodeGpus& share : placement) {
        nodes.push_back(share.node);
        if (std::ranges::find(request.near, share.node) != request.near.end()) near += share.count();
    }
    std::ranges::sort(nodes);
    const auto duplicates = std::ranges::unique(nodes);
    const auto count = static_cast<std::uint32_t>(duplicates.begin() - nodes.begin());
    const std::uint32_t most = gpus_on_largest_node_[request.gpu_type];
    return gang_rate(request, count, (request.gpus + most - 1) / most, near);
}

std::size_t Cells::hierarchies_in(const Placement& placement) const {
    std::set<std::uint32_t> found;
    for (const NodeGpus& share : placement) found.insert(locations_[share.node].hierarchy);
    return found.size();
}

std::optional<Placement> Cells::take(std::uint32_t cluster, const PlaceRequest& request) {
    if (request.gpus == 0 || !collect(cluster, request, request.gpus)) return std::nullopt;
    bool collected = true;
    const auto few_nodes = [&] {
        const bool bound = bind_all(cluster, request.gpu_type);
        if ((!bound && std::exchange(collected, false)) || collect(cluster, request, request.gpus)) {
            Placement taken = take_few_nodes(cluster, request, request.gpus);
            if (!taken.empty()) return taken;
        }
        unbind_idle();
        return take_healthy_cell(cluster, request);
    };
    Placement placement = few_nodes();
    if (placement.empty()) return std::nullopt;
    const bool free_shape = request.shape == nullptr || request.shape->is_free();
    if (!request.near.empty() && request.rate_far < 1 && free_shape) {
        const double few_nodes_rate = rate(request, placement);
        const std::size_t few_nodes_hierarchies = hierarchies_in(placement);
        release_gpus(placement);
        placement = take_near(cluster, request);
        const bool crosses_more = hierarchies_in(placement) > few_nodes_hierarchies;
        if (placement.empty() || crosses_more || rate(request, placement) <= few_nodes_rate) {
            if (!placement.empty()) release_gpus(placement);
            placement = few_nodes();
            LARDER_ASSERT(!placement.empty());
        }
    }
    // Merge the shares of several cells on one node.
    std::ranges::sort(placement, {}, &NodeGpus::node);
    Placement merged;
    for (const NodeGpus& share : placement) {
        if (!merged.empty() && merged.back().node == share.node) {
            merged.back().gpus |= share.gpus;
        } else {
            merged.push_back(share);
        }
    }
    return merged;
}

// Makes the virtual cluster hold exactly these GPUs, which no other job may hold. Returns false if it cannot.
bool Cells::claim_at(std::uint32_t cluster, const Placement& placement) {
    Placement done;
    for (SharedHierarchy& hierarchy : hierarchies_) hierarchy.unbind_bad_cells();
    for (const NodeGpus& share : placement) {
        if (!at(locations_[share.node]).cover(cluster, locations_[share.node].node, share.gpus)) break;
        hold(share.node, share.gpus);
        done.push_back(share);
    }
    const bool covered = done.size() == placement.size();
    if (!covered) drop(done);
    unbind_idle();
    return covered;
}

// Returns the cells under a placement with a claim.
std::vector<Cells::HierarchyCell> Cells::cells_under(const Placement& placement) const {
    std::vector<HierarchyCell> found;
    for (const NodeGpus& share : placement) {
        const NodeLocation location = locations_[share.node];
        for (const CellId cell : hierarchies_[location.hierarchy].cells_of(location.node, share.gpus)) {
            const HierarchyCell one(location.hierarchy, cell);
            if (found.empty() || found.back() != one) found.push_back(one);
        }
    }
    return found;
}

std::vector<HeldCell> Cells::cells_of(JobId id) const {
    const auto job = jobs_.find(id);
    if (job == jobs_.end()) return {};
    std::vector<HeldCell> named;
    for (const auto& [h, cell] :
         job->second.opportunistic ? job->second.former_cells : cells_under(job->second.placement)) {
        const Hierarchy& cells = hierarchies_[h].cells();
        const std::uint32_t first_gpu = cell.index * cells.gpus_in(cell.level);
        named.push_back({.node = to_cluster(h, cells.first_node(cell)),
                         .gpu = first_gpu % cells.node_gpus(),
                         .level = std::string(configs_[h].level_name(cell.level))});
    }
    return named;
}

// Returns the named cells that still exist.
std::vector<Cells::HierarchyCell> Cells::cells_named(std::span<const HeldCell> cells) const {
    std::vector<HierarchyCell> found;
    for (const HeldCell& cell : cells) {
        if (cell.node >= locations_.size()) continue;
        const NodeLocation location = locations_[cell.node];
        const Hierarchy& hierarchy = hierarchies_[location.hierarchy].cells();
        if (cell.gpu >= hierarchy.node_gpus()) continue;
        const CellId gpu{0, location.node * hierarchy.node_gpus() + cell.gpu};
        for (std::uint32_t level = 0; level < hierarchy.levels(); ++level) {
            if (configs_[location.hierarchy].level_name(level) != cell.level) continue;
            found.emplace_back(location.hierarchy, CellId{level, hierarchy.ancestor(gpu, level)});
        }
    }
    return found;
}

// Binds these cells again where possible: which cell a job gets decides which cells other jobs can get.
void Cells::bind_again(std::uint32_t cluster, std::span<const HierarchyCell> cells) {
    for (SharedHierarchy& hierarchy : hierarchies_) hierarchy.unbind_bad_cells();
    for (const auto& [hierarchy, cell] : cells) hierarchies_[hierarchy].rebind(cluster, cell);
}

void Cells::demote(JobId id, Job& job) {
    job.former_cells = cells_under(job.placement);
    drop(job.placement);
    job.opportunistic = true;
    run_opportunistic(id, job.placement);
}

// Gives the job a claim to its GPUs. Returns false if another job holds any of them. GPUs on bad nodes are no obstacle.
bool Cells::promote(Job& job) {
    if (job.cluster == kNone) return false;
    const bool claimed = std::ranges::any_of(job.placement, [&](const NodeGpus& share) {
        return (at(locations_[share.node]).use(locations_[share.node].node).claimed & share.gpus) != 0;
    });
    if (claimed) return false;
    bind_again(job.cluster, job.former_cells);
    if (!claim_at(job.cluster, job.placement)) return false;
    stop_opportunistic(job.placement);
    job.opportunistic = false;
    return true;
}

}  // namespace larder::scheduler
