// The part of Cells for preemption within a virtual cluster.

#include <algorithm>

#include "base/assert.h"
#include "scheduler/cells/cells.h"

namespace larder::scheduler {

// Returns the cells under a placement that is held with a claim.
std::vector<Cells::HierarchyCell> Cells::cells_under(const Placement& placement) const {
    std::vector<HierarchyCell> found;
    for (const NodeGpus& share : placement) {
        const Where where = where_[share.node];
        for (const CellId cell : hierarchies_[where.hierarchy].cells_of(where.node, share.gpus)) {
            const HierarchyCell one(where.hierarchy, cell);
            if (found.empty() || found.back() != one) found.push_back(one);
        }
    }
    return found;
}

std::vector<HeldCell> Cells::cells_of(JobId id) const {
    const auto job = jobs_.find(id);
    if (job == jobs_.end()) return {};
    std::vector<HeldCell> named;
    for (const auto& [h, cell] : job->second.opportunistic ? job->second.had : cells_under(job->second.placement)) {
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
        if (cell.node >= where_.size()) continue;
        const Where where = where_[cell.node];
        const Hierarchy& of = hierarchies_[where.hierarchy].cells();
        if (cell.gpu >= of.node_gpus()) continue;
        const CellId gpu{0, where.node * of.node_gpus() + cell.gpu};
        for (std::uint32_t level = 0; level < of.levels(); ++level) {
            if (named_[where.hierarchy].level_name(level) != cell.level) continue;
            found.emplace_back(where.hierarchy, CellId{level, of.ancestor(gpu, level)});
        }
    }
    return found;
}

// Binds these cells again where possible. Which cell a job gets decides which cells other jobs can get.
void Cells::bind_again(std::uint32_t cluster, std::span<const HierarchyCell> cells) {
    for (SharedHierarchy& hierarchy : hierarchies_) hierarchy.undoom();
    for (const auto& [hierarchy, cell] : cells) hierarchies_[hierarchy].rebind(cluster, cell);
}

void Cells::demote(JobId id, Job& job) {
    job.had = cells_under(job.placement);
    drop(job.placement);
    job.opportunistic = true;
    run_opportunistic(id, job.placement);
}

// Fails if another job holds any of its GPUs. GPUs on bad nodes do not prevent it.
bool Cells::promote(JobId id, Job& job) {
    if (job.cluster == kNone) return false;
    const bool held = std::ranges::any_of(job.placement, [&](const NodeGpus& share) {
        return (at(where_[share.node]).use(where_[share.node].node).held & share.gpus) != 0;
    });
    if (held) return false;
    bind_again(job.cluster, job.had);
    if (!claim_at(job.cluster, job.placement)) return false;
    stop_opportunistic(job.placement);
    job.opportunistic = false;
    for (auto& [gang, waiting] : reserved_) std::erase(waiting.demoted, id);
    return true;
}

// Gives demoted jobs their claims back, the highest priority first, then the earliest arrival. Leaves in `demoted` the
// jobs that cannot have theirs.
void Cells::restore(std::vector<JobId>& demoted) {
    std::ranges::sort(demoted, [&](JobId a, JobId b) {
        const Job& x = jobs_.at(a);
        const Job& y = jobs_.at(b);
        return x.priority != y.priority ? x.priority > y.priority : x.arrival < y.arrival;
    });
    std::erase_if(demoted, [&](JobId id) { return promote(id, jobs_.at(id)); });
}

Cells::Cancelled Cells::cancel(JobId id) {
    const auto gang = reserved_.find(id);
    Cancelled cancelled{.id = id, .job = std::move(jobs_.at(id)), .demoted = std::move(gang->second.demoted)};
    reserved_.erase(gang);
    cancelled.job.had = cells_under(cancelled.job.placement);
    drop(cancelled.job.placement);
    jobs_.erase(id);
    for (auto& [other, waiting] : reserved_) std::erase(waiting.demoted, id);
    std::vector<JobId> demoted = cancelled.demoted;
    restore(demoted);
    return cancelled;
}

// Undoes cancel(). Nothing else may have changed since.
void Cells::revive(const Cancelled& cancelled) {
    for (const JobId id : cancelled.demoted) {
        Job& job = jobs_.at(id);
        if (!job.opportunistic) demote(id, job);
    }
    bind_again(cancelled.job.cluster, cancelled.job.had);
    const bool back = claim_at(cancelled.job.cluster, cancelled.job.placement);
    LARDER_ASSERT(back);
    jobs_.emplace(cancelled.id, cancelled.job);
    reserved_.emplace(cancelled.id,
                      Waiting{.victims = opportunistic_on(cancelled.job.placement), .demoted = cancelled.demoted});
}

std::vector<JobId> Cells::victims_for(std::uint32_t cluster, const PlaceRequest& request) {
    std::set<std::int32_t> priorities;
    for (const auto& [id, job] : jobs_) {
        if (!job.opportunistic && job.cluster == cluster && job.priority < request.priority) {
            priorities.insert(job.priority);
        }
    }
    for (const std::int32_t highest : priorities) {
        std::vector<JobId> victims = victims_up_to(highest, cluster, request);
        if (!victims.empty()) return victims;
    }
    return {};
}

std::vector<JobId> Cells::victims_up_to(std::int32_t highest, std::uint32_t cluster, const PlaceRequest& request) {
    std::vector<JobId> lower;
    Preemptible preemptible;
    for (const auto& [id, job] : jobs_) {
        const bool makes_room =
            !job.opportunistic && job.cluster == cluster && job.gpu_type == request.gpu_type && job.priority <= highest;
        if (!makes_room) continue;
        lower.push_back(id);
        for (const NodeGpus& share : job.placement) preemptible[share.node] |= share.gpus;
    }
    bind_all(cluster, request.gpu_type);
    std::vector<JobId> victims;
    if (collect(cluster, request, request.gpus, &preemptible)) {
        Preemptible wanted;
        for (const OfferTaken& taken : plan_gang(offers_, request.gpus)) {
            const NodeOffer& offer = offers_[taken.offer];
            if (offer.fresh) continue;
            const SharedHierarchy& shared = hierarchies_[offer.hierarchy_index];
            const std::uint32_t node = to_cluster(offer.hierarchy_index, offer.node);
            const std::uint64_t mask = shared.gpus_owned(cluster, offer.node);
            const std::uint64_t held = shared.use(offer.node).held;
            const auto found = preemptible.find(node);
            const std::uint64_t may = found == preemptible.end() ? 0 : found->second;
            const CellId cell{offer.level, shared.root(offer.root).index};
            const Hierarchy& cells = shared.cells();
            const std::uint64_t in_root = offer.level >= cells.node_level() ? mask : mask & cells.gpus_of(cell);
            wanted[node] |=
                pick_gpus(cells, in_root & (~held | may), may | shared.use(offer.node).opportunistic, taken.gpus) &
                held;
        }
        for (const JobId id : lower) {
            const bool overlaps = std::ranges::any_of(jobs_.at(id).placement, [&](const NodeGpus& share) {
                const auto found = wanted.find(share.node);
                return found != wanted.end() && (found->second & share.gpus) != 0;
            });
            if (overlaps) victims.push_back(id);
        }
    }
    unbind_idle();
    std::ranges::sort(victims, [&](JobId a, JobId b) {
        const Job& x = jobs_.at(a);
        const Job& y = jobs_.at(b);
        return x.priority != y.priority ? x.priority < y.priority : x.arrival > y.arrival;
    });
    return victims;
}

std::optional<Reservation> Cells::reserve(const PlaceRequest& request) {
    LARDER_ASSERT(!jobs_.contains(request.job));
    const std::uint32_t cluster = cluster_of_tenant(request.tenant);
    if (request.opportunistic || cluster == kNone) {
        auto placed = place(request);
        if (!placed) return std::nullopt;
        return Reservation{.placement = std::move(placed->placement), .victims = {}, .demoted = {}, .cancelled = {}};
    }
    Reservation made;
    std::vector<Cancelled> cancelled;
    auto placement = take(cluster, request);
    while (!placement) {
        const std::vector<JobId> victims = victims_for(cluster, request);
        if (victims.empty()) break;
        // A victim that only waits is cancelled. Its own victims may then have their claims back, so look for victims
        // again.
        const auto waits = std::ranges::find_if(victims, [&](JobId id) { return reserved_.contains(id); });
        if (waits != victims.end()) {
            cancelled.push_back(cancel(*waits));
        } else {
            for (const JobId id : victims) {
                demote(id, jobs_.at(id));
                made.demoted.push_back(id);
            }
        }
        placement = take(cluster, request);
    }
    restore(made.demoted);
    if (!placement) {
        LARDER_ASSERT(made.demoted.empty());
        while (!cancelled.empty()) {
            revive(cancelled.back());
            cancelled.pop_back();
        }
        settle();
        return std::nullopt;
    }
    for (const Cancelled& one : cancelled) made.cancelled.push_back(one.id);
    made.victims = opportunistic_on(*placement);
    add(request, *placement);
    if (!made.victims.empty()) {
        reserved_.emplace(request.job, Waiting{.victims = made.victims, .demoted = made.demoted});
    }
    settle();
    made.placement = std::move(*placement);
    return made;
}

}  // namespace larder::scheduler
