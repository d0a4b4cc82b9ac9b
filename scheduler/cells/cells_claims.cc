// The claims of jobs on cells: given up, taken up again, and named so that they outlast a restart.

#include <algorithm>

#include "base/assert.h"
#include "scheduler/cells/cells.h"

namespace larder::scheduler {

// Returns the cells under a placement that is held with a claim.
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
                         .level = std::string(named_[h].level_name(cell.level))});
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
            if (named_[location.hierarchy].level_name(level) != cell.level) continue;
            found.emplace_back(location.hierarchy, CellId{level, hierarchy.ancestor(gpu, level)});
        }
    }
    return found;
}

// Binds these cells again where possible. Which cell a job gets decides which cells other jobs can get.
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

// Fails if another job holds any of its GPUs. GPUs on bad nodes do not prevent it.
bool Cells::promote(Job& job) {
    if (job.cluster == kNone) return false;
    const bool held = std::ranges::any_of(job.placement, [&](const NodeGpus& share) {
        return (at(locations_[share.node]).use(locations_[share.node].node).held & share.gpus) != 0;
    });
    if (held) return false;
    bind_again(job.cluster, job.former_cells);
    if (!claim_at(job.cluster, job.placement)) return false;
    stop_opportunistic(job.placement);
    job.opportunistic = false;
    return true;
}

}  // namespace larder::scheduler
