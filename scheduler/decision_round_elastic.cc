// The part of DecisionRound for elastic jobs. They grow into GPUs that no other job uses, and shrink to the number they
// state, or only as far as needed, when others need the room.

#include <algorithm>

#include "base/assert.h"
#include "scheduler/decision_round.h"

namespace larder::scheduler {
namespace {

// The least time assumed for a restart: few jobs state their restart time, and no restart is free.
constexpr double kRestartLeast_s = 30;

// Returns `gpus` of a placement's GPUs, on as few of its nodes as possible.
Placement part_of(Placement placement, std::uint32_t gpus) {
    std::ranges::stable_sort(placement, std::ranges::greater{}, &NodeGpus::count);
    Placement part;
    for (NodeGpus share : placement) {
        while (share.count() > gpus) share.gpus &= share.gpus - 1;
        if (share.gpus == 0) break;
        gpus -= share.count();
        part.push_back(share);
    }
    std::ranges::sort(part, {}, &NodeGpus::node);
    return part;
}

}  // namespace

// Lets grown jobs keep their GPUs as far as room, quotas and claims allow, and shrinks them by the rest.
void DecisionRound::keep_grown(Actions& actions) {
    for (const Grown& grown : grown_) {
        const JobState& job = *jobs_[grown.job];
        const bool claims = !job.opportunistic;
        std::uint32_t more =
            std::min({room_.left(job.gpu_type), quotas_.left(job.spec->tenant), job.gpus - grown.gpus});
        if (claims) more = std::min(more, room_.claim_left(*job.spec, job.gpu_type));
        take(*job.spec, job.gpu_type, more, claims);
        if (grown.gpus + more < job.gpus) shrink(grown.job, grown.gpus + more, actions);
    }
}

// Shrinks all grown jobs to make a place for a gang: enough GPUs are left, but not in a place where the gang may run.
// Does so only once per round. Returns false if no job shrank.
bool DecisionRound::shrink_grown(Actions& actions) {
    if (grown_shrunk_) return false;
    grown_shrunk_ = true;
    for (const Grown& grown : grown_) {
        if (is_stopped_[grown.job] || fates_[grown.job] != Fate::keeps) continue;
        shrink(grown.job, grown.gpus, actions);
        if (fates_[grown.job] == Fate::starts) shrunk_.push_back(grown.job);
    }
    return !shrunk_.empty();
}

void DecisionRound::shrink(std::uint32_t j, std::uint32_t gpus, Actions& actions) {
    const JobState& job = *jobs_[j];
    stop(j);
    const PlaceRequest asked = request(j, gpus, job.gpu_type, job.opportunistic);
    Placement placement = part_of(job.placement, gpus);
    if (!put_back(asked, placement, held_before_[j])) {  // one of its nodes is lost or drained
        auto placed = placer_.place(asked);
        fates_[j] = Fate::unplaced;
        if (!placed) return;
        for (const JobId evicted : placed->evicted) evict(evicted, actions);
        placement = std::move(placed->placement);
    }
    fates_[j] = Fate::starts;
    actions.starts.push_back({.job = j,
                              .gpus = gpus,
                              .gpu_type = job.gpu_type,
                              .opportunistic = job.opportunistic,
                              .placement = std::move(placement),
                              .packed_with = std::nullopt});
}

// Gives shrunk jobs their GPUs back if the gang did not take them.
void DecisionRound::restore_shrunk(Actions& actions) {
    for (const std::uint32_t j : shrunk_) {
        const JobState& job = *jobs_[j];
        const auto started = std::ranges::find(actions.starts, j, &Start::job);
        if (started == actions.starts.end()) continue;
        const std::vector<HeldCell> held = placer_.cells_of(input_.ids[j]);
        placer_.release(input_.ids[j]);
        if (put_back(request(j, job.gpus, job.gpu_type, job.opportunistic), job.placement, held_before_[j])) {
            actions.starts.erase(started);
            std::erase(stopped_, j);
            is_stopped_[j] = false;
            fates_[j] = Fate::keeps;
        } else {
            const bool back = put_back(request(j, started->gpus, started->gpu_type, started->opportunistic),
                                       started->placement, held);
            LARDER_ASSERT(back);
        }
    }
}

// Returns the jobs that may grow, with their present sizes. Leaves out jobs that were just resized.
std::vector<Growing> DecisionRound::jobs_that_may_grow(const Actions& actions) const {
    std::vector<Growing> found;
    const auto add = [&](std::uint32_t j, std::uint32_t gpus, std::uint32_t gpu_type) {
        const JobSpec& spec = *jobs_[j]->spec;
        if (gpus < spec.gpus_max && spec.preemptible && !spec.opportunistic) {
            found.push_back({.job = j, .gpu_type = gpu_type, .gpus = gpus});
        }
    };
    for (const Decision* const decision : decisions_) {
        for (const Want& want : decision->wants) {
            const JobState& job = *jobs_[want.job];
            const bool runs_on = fates_[want.job] == Fate::keeps && job.running && !is_stopped_[want.job];
            if (runs_on && !job.opportunistic && job.packed_with == nullptr) add(want.job, job.gpus, job.gpu_type);
        }
    }
    for (const Start& start : actions.starts) {
        if (!jobs_[start.job]->running && !start.opportunistic && !start.packed_with) {
            add(start.job, start.gpus, start.gpu_type);
        }
    }
    return found;
}

bool DecisionRound::anyone_waits() const {
    return std::ranges::any_of(
        fates_, [](Fate fate) { return fate == Fate::blocked || fate == Fate::unplaced || fate == Fate::pending; });
}

// Returns when a waiting job may need the free GPUs: at the next end of a job or at the policy's next decision.
double DecisionRound::room_lasts_until_s() const {
    double until_s = kNever;
    for (const Decision* const decision : decisions_) until_s = std::min(until_s, decision->next_s);
    for (std::uint32_t j = 0; j < jobs_.size(); ++j) {
        if (!jobs_[j]->running || is_stopped_[j]) continue;
        until_s = std::min(until_s, input_.snapshot.now_s + expected_remaining_s(input_.snapshot, *jobs_[j]));
    }
    return until_s;
}

// True if growing pays. A running job restarts to grow, and any job restarts once more if waiting jobs need the room
// before it ends.
bool DecisionRound::pays(const Growing& grown, std::uint32_t gpus_before, std::size_t nodes, double horizon_s) const {
    const JobState& job = *jobs_[grown.job];
    const double before = expected_rate(input_.snapshot, job, grown.gpu_type, gpus_before);
    const double after = expected_rate(input_.snapshot, job, grown.gpu_type, grown.gpus) *
                         consolidation(*job.spec, static_cast<std::uint32_t>(nodes), 1);
    if (before <= 0) return after > 0;
    const double end_s = job.remaining_bytes / before;
    const int restarts = (job.running ? 1 : 0) + (horizon_s < end_s ? 1 : 0);
    return growing_pays(before, after, std::min(end_s, horizon_s), std::max(job.spec->restart_s, kRestartLeast_s),
                        restarts);
}

void DecisionRound::grow_into_spare_gpus(Actions& actions) {
    std::vector<Growing> growing = jobs_that_may_grow(actions);
    if (growing.empty()) return;
    std::vector<std::uint32_t> left;
    const std::size_t types = input_.snapshot.gpu_types.size();
    left.reserve(types);
    for (std::uint32_t type = 0; type < types; ++type) left.push_back(placer_.free_gpus(type));
    if (std::ranges::none_of(left, [](std::uint32_t gpus) { return gpus > 0; })) return;
    raise_all(input_.snapshot, left, growing);
    const double horizon_s = anyone_waits() ? room_lasts_until_s() - input_.snapshot.now_s : kNever;
    for (const Growing& one : growing) grow(one, horizon_s, actions);
    place_evicted(actions);
}

// Grows the job if that pays at the place found, else leaves it as it is.
void DecisionRound::grow(const Growing& grown, double horizon_s, Actions& actions) {
    const std::uint32_t j = grown.job;
    const JobState& job = *jobs_[j];
    const auto started = std::ranges::find(actions.starts, j, &Start::job);
    const bool runs = started == actions.starts.end();
    const std::uint32_t before = runs ? job.gpus : started->gpus;
    const Placement placement = runs ? job.placement : started->placement;
    Growing to = grown;
    to.gpus = before +
              std::min({grown.gpus - before, quotas_.left(job.spec->tenant), room_.claim_left(*job.spec, to.gpu_type)});
    if (to.gpus == before || !pays(to, before, 1, horizon_s)) return;
    const std::vector<HeldCell> held = placer_.cells_of(input_.ids[j]);
    placer_.release(input_.ids[j]);
    auto placed = placer_.place(request(j, to.gpus, to.gpu_type, false));
    const std::size_t stopped_before = stopped_.size();
    if (placed) {
        for (const JobId evicted : placed->evicted) evict(evicted, actions);
        actions.stops.insert(actions.stops.end(), stopped_.begin() + static_cast<std::ptrdiff_t>(stopped_before),
                             stopped_.end());
    }
    if (placed && !pays(to, before, placed->placement.size(), horizon_s)) {
        placer_.release(input_.ids[j]);
        placed.reset();
    }
    if (!placed) {
        const bool back = put_back(request(j, before, to.gpu_type, false), placement, held);
        LARDER_ASSERT(back || runs);
        if (back) return;
        actions.stops.push_back(j);  // one of its nodes is lost or drained
        is_stopped_[j] = true;
        fates_[j] = Fate::unplaced;
        return;
    }
    take(*job.spec, to.gpu_type, to.gpus - before, true);
    if (!runs) {
        const auto again = std::ranges::find(actions.starts, j, &Start::job);
        again->gpus = to.gpus;
        again->placement = std::move(placed->placement);
        return;
    }
    actions.stops.push_back(j);
    is_stopped_[j] = true;
    fates_[j] = Fate::starts;
    if (holds_lease(job, input_.snapshot.now_s)) actions.leases.emplace_back(j, job.lease_until_s);
    actions.starts.push_back({.job = j,
                              .gpus = to.gpus,
                              .gpu_type = to.gpu_type,
                              .opportunistic = false,
                              .placement = std::move(placed->placement),
                              .packed_with = std::nullopt});
}

}  // namespace larder::scheduler
