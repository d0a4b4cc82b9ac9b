#include "scheduler/decision_round.h"

#include <algorithm>

#include "base/assert.h"

namespace larder::scheduler {
namespace {

// Orders the wishes by priority. Promised jobs come first, and a packed job comes with its host.
std::vector<const Want*> by_priority(const Decision& decision, std::span<const JobState* const> jobs) {
    std::vector<const Want*> ordered;
    ordered.reserve(decision.wants.size());
    std::vector<std::int64_t> ranks(jobs.size());
    bool in_order = true;
    for (const Want& want : decision.wants) {
        ranks[want.job] = want.promised      ? std::numeric_limits<std::int64_t>::max()
                          : want.packed_with ? ranks[*want.packed_with]
                                             : jobs[want.job]->spec->priority;
        in_order = in_order && (ordered.empty() || ranks[ordered.back()->job] >= ranks[want.job]);
        ordered.push_back(&want);
    }
    if (!in_order) {
        std::ranges::stable_sort(ordered, std::ranges::greater{}, [&](const Want* want) { return ranks[want->job]; });
    }
    return ordered;
}

}  // namespace

DecisionRound::DecisionRound(const DecideInput& input, Placer& placer, const Policy& policy,
                             std::span<const std::uint32_t> claims)
    : input_(input),
      jobs_(input.snapshot.jobs),
      placer_(placer),
      preempts_(policy.preempts()),
      grows_(!policy.sizes_jobs()),
      fates_(jobs_.size(), Fate::not_wanted),
      is_stopped_(jobs_.size()),
      only_gains_claim_(jobs_.size()),
      room_(input.snapshot.gpu_types, claims),
      quotas_(input.snapshot.tenants) {
    for (std::uint32_t j = 0; j < jobs_.size(); ++j) {
        const JobState& job = *jobs_[j];
        if (!job.running || (preempts_ && job.spec->preemptible) || job.opportunistic) continue;
        keep(j, job.gpus);
    }
}

// --- choosing jobs

void DecisionRound::choose(const Decision& decision) {
    decisions_.push_back(&decision);
    for (const Refused& refused : decision.refused) {
        if (fates_[refused.job] == Fate::not_wanted) fates_[refused.job] = Fate::refused;
    }
    for (const Want* const want : by_priority(decision, jobs_)) {
        choose_one(decision, *want);
        const bool lacks_room = fates_[want->job] == Fate::blocked || fates_[want->job] == Fate::unclaimed;
        const bool blocked = lacks_room && !runs_without_claim(want->job);
        if (blocked && !decision.skips_blocked) break;
    }
}

void DecisionRound::choose_one(const Decision& decision, const Want& want) {
    if (fates_[want.job] != Fate::not_wanted) return;
    const JobState& job = *jobs_[want.job];
    const bool may_not_grow =
        job.running && job.resizing && (want.gpu_type == kAnyGpuType || want.gpu_type == job.gpu_type);
    const std::uint32_t wanted = may_not_grow ? std::min(want.gpus, job.gpus) : want.gpus;
    const std::uint32_t allowed = quotas_.allowed(*job.spec, wanted);
    const std::uint32_t gpus = want.packed_with && allowed < wanted ? 0 : allowed;
    if (gpus == 0) {
        fates_[want.job] = Fate::over_quota;
        return;
    }
    if (want.packed_with && !may_share(want)) {
        fates_[want.job] = Fate::unclaimed;
        return;
    }
    const bool claims = !want.opportunistic;
    const bool can_stay = job.running && !want.packed_with && job.packed_with == nullptr &&
                          (want.gpu_type == kAnyGpuType || want.gpu_type == job.gpu_type) &&
                          job.opportunistic == want.opportunistic && room_.left(job.gpu_type) >= gpus &&
                          (!claims || room_.claim_left(*job.spec, job.gpu_type) >= gpus);
    const bool has_grown = grows_ && job.gpus > gpus;
    if (can_stay && (job.gpus == gpus || has_grown)) {
        keep(want.job, gpus);
        if (has_grown) grown_.push_back({.job = want.job, .gpus = gpus});
        if (want.moves) moves_.push_back(want.job);
        return;
    }
    const bool packed_still = want.packed_with && job.running && job.packed_with == jobs_[*want.packed_with] &&
                              fates_[*want.packed_with] == Fate::keeps;
    if (packed_still) {
        keep(want.job, gpus);
        return;
    }
    const std::uint32_t type = want.packed_with ? 0 : type_with_room(want, gpus, claims);
    if (type == kNoGpuType) {
        const bool has_room = claims && type_with_room(want, gpus, false) != kNoGpuType;
        fates_[want.job] = has_room ? Fate::unclaimed : Fate::blocked;
        if (has_room && !job.running && !want.packed_with) {
            unclaimed_.push_back(
                {.decision = &decision, .want = &want, .gpus = gpus, .gpu_type = type_with_room(want, gpus, false)});
        }
        if (decision.skips_blocked && !runs_without_claim(want.job)) hold_up(decision, job);
        return;
    }
    if (is_held_up(job)) {
        fates_[want.job] = Fate::blocked;
        return;
    }
    // Under tenants' queues (blocks_tenant) a wish does not reduce the room of other tenants; only a placed job does.
    if (want.packed_with) {
        quotas_.take(job.spec->tenant, gpus);
    } else if (!decision.blocks_tenant) {
        take(*job.spec, type, gpus, claims);
    }
    fates_[want.job] = Fate::pending;
    only_gains_claim_[want.job] = job.running && job.opportunistic && !want.opportunistic && job.gpus == gpus &&
                                  job.gpu_type == type && !want.packed_with && job.packed_with == nullptr;
    pending_.push_back({.decision = &decision, .want = &want, .gpus = gpus, .gpu_type = type});
}

// True if the job waits for nothing but its claim: no other job waits for it.
bool DecisionRound::runs_without_claim(std::uint32_t j) const {
    return !preempts_ && jobs_[j]->running && jobs_[j]->opportunistic;
}

void DecisionRound::keep(std::uint32_t j, std::uint32_t gpus) {
    const JobState& job = *jobs_[j];
    if (fates_[j] == Fate::keeps) return;
    fates_[j] = Fate::keeps;
    if (job.packed_with != nullptr) {
        quotas_.take(job.spec->tenant, gpus);
    } else {
        take(*job.spec, job.gpu_type, gpus, !job.opportunistic);
    }
}

// A guest slows its host down, so both must be of the same tenant, or neither may have a claim.
bool DecisionRound::may_share(const Want& guest) const {
    const std::uint32_t host = *guest.packed_with;
    if (!room_.has_claims() || jobs_[guest.job]->spec->tenant == jobs_[host]->spec->tenant) return true;
    if (!guest.opportunistic) return false;
    const auto starts =
        std::ranges::find_if(pending_, [&](const Pending& pending) { return pending.want->job == host; });
    return starts == pending_.end() ? jobs_[host]->opportunistic : starts->want->opportunistic;
}

void DecisionRound::take(const JobSpec& spec, std::uint32_t gpu_type, std::uint32_t gpus, bool claims) {
    room_.take(spec, gpu_type, gpus, claims);
    quotas_.take(spec.tenant, gpus);
}

// Returns the type that the wish asks for, or the job's fastest type with enough GPUs left; kNoGpuType: none.
std::uint32_t DecisionRound::type_with_room(const Want& want, std::uint32_t gpus, bool claims) const {
    const JobSpec& spec = *jobs_[want.job]->spec;
    return room_.fastest_type(spec, [&](std::uint32_t type) {
        return (want.gpu_type == kAnyGpuType || want.gpu_type == type) && room_.fits(spec, type, gpus, claims);
    });
}

void DecisionRound::hold_up(const Decision& decision, const JobState& job) {
    if (decision.blocks_tenant) held_up_.emplace(job.spec->opportunistic, job.spec->tenant);
}

bool DecisionRound::is_held_up(const JobState& job) const {
    return held_up_.contains({job.spec->opportunistic, job.spec->tenant});
}

// True if a running job must stop even if no other job takes its GPUs: an unwanted guest, which slows its host down, or
// a job over its tenant's quota.
bool DecisionRound::must_stop(std::uint32_t j) const {
    const bool unwanted = is_unwanted(j) || fates_[j] == Fate::over_quota;
    const bool may_be_stopped = preempts_ || jobs_[j]->spec->opportunistic;
    return may_be_stopped && unwanted && (jobs_[j]->packed_with != nullptr || fates_[j] == Fate::over_quota);
}

bool DecisionRound::is_unwanted(std::uint32_t j) const {
    return fates_[j] == Fate::not_wanted || fates_[j] == Fate::blocked || fates_[j] == Fate::unclaimed ||
           fates_[j] == Fate::refused;
}

WaitsFor DecisionRound::waits_for(std::uint32_t j) const {
    const JobSpec& spec = *jobs_[j]->spec;
    if (jobs_[j]->running && !is_stopped_[j]) return WaitsFor::nothing;
    switch (fates_[j]) {
        case Fate::keeps:
        case Fate::starts: return WaitsFor::nothing;
        case Fate::over_quota: return WaitsFor::quota;
        case Fate::refused: return WaitsFor::deadline;
        case Fate::unplaced:
        case Fate::unclaimed:
        case Fate::not_wanted:
        case Fate::blocked:
        case Fate::pending: break;
    }
    bool fits = false;
    bool free = false;
    for (std::uint32_t type = 0; type < input_.snapshot.gpu_types.size(); ++type) {
        if (!may_run_on(spec, type)) continue;
        fits = fits || input_.snapshot.gpu_types[type].gpus >= spec.gpus_min;
        free = free || placer_.free_gpus(type) >= spec.gpus_min;
    }
    if (!fits) return WaitsFor::never_fits;
    if (!free) return WaitsFor::gpus;
    return fates_[j] == Fate::unplaced || fates_[j] == Fate::unclaimed ? WaitsFor::place : WaitsFor::turn;
}

// --- starts and stops

void DecisionRound::carry_out(Actions& actions) {
    for (std::uint32_t j = 0; j < jobs_.size(); ++j) {
        if (jobs_[j]->running && ((fates_[j] == Fate::pending && !only_gains_claim_[j]) || must_stop(j))) stop(j);
    }
    keep_grown(actions);
    carry_out_pending(actions);
    place_unclaimed(actions);
    place_evicted(actions);
    restore_shrunk(actions);
    restore_stopped_and_demoted(actions);
    for (const std::uint32_t j : moves_) move(j, actions);
    if (grows_) grow_into_spare_gpus(actions);
    stop_guests(actions);
    for (const Decision* const decision : decisions_) {
        set_leases(*decision, actions);
        actions.admitted.insert(actions.admitted.end(), decision->admitted.begin(), decision->admitted.end());
        actions.refused.insert(actions.refused.end(), decision->refused.begin(), decision->refused.end());
        actions.promised.insert(actions.promised.end(), decision->promised.begin(), decision->promised.end());
        actions.next_s = std::min(actions.next_s, decision->next_s);
    }
}

void DecisionRound::carry_out_pending(Actions& actions) {
    const Decision* stuck = nullptr;  // a decision with an unplaced job that it does not pass over
    for (const Pending& pending : pending_) {
        const std::uint32_t j = pending.want->job;
        if (pending.decision == stuck) continue;
        if (only_gains_claim_[j] && !is_stopped_[j]) {
            take_claim(j, actions);
            continue;
        }
        if (is_held_up(*jobs_[j])) {
            fates_[j] = Fate::blocked;
            continue;
        }
        bool placed = pending.want->packed_with ? pack(pending, actions) : place(pending, actions);
        if (!placed && !pending.want->packed_with && shrink_grown(actions)) placed = place(pending, actions);
        if (!placed && !pending.want->packed_with && stop_unwanted(pending.want->opportunistic)) {
            placed = place(pending, actions);
        }
        if (placed) continue;
        fates_[j] = Fate::unplaced;
        if (!pending.decision->skips_blocked) stuck = pending.decision;
        hold_up(*pending.decision, *jobs_[j]);
    }
}

// Lets a stopped job run on if no job took its GPUs, and gives a demoted job its claim back if no job took that.
void DecisionRound::restore_stopped_and_demoted(Actions& actions) {
    for (const std::uint32_t j : stopped_) {
        if (fates_[j] == Fate::starts || must_stop(j) || !restore_stopped(j)) actions.stops.push_back(j);
    }
    for (const std::uint32_t j : demoted_) {
        if (is_stopped_[j]) continue;
        fates_[j] = Fate::keeps;
        if (!placer_.set_opportunistic(input_.ids[j], false)) actions.demoted.push_back(j);
    }
}

void DecisionRound::set_leases(const Decision& decision, Actions& actions) const {
    for (const Want& want : decision.wants) {
        const Fate fate = fates_[want.job];
        if (want.lease_s <= 0 || (fate != Fate::keeps && fate != Fate::starts)) continue;
        const double until = input_.snapshot.now_s + want.lease_s;
        if (fate == Fate::starts || !holds_lease(*jobs_[want.job], input_.snapshot.now_s)) {
            actions.leases.emplace_back(want.job, until);
        }
    }
}

// A packed job has no GPUs of its own to release.
void DecisionRound::stop(std::uint32_t j) {
    stopped_.push_back(j);
    is_stopped_[j] = true;
    if (jobs_[j]->packed_with == nullptr) release_gpus(j);
}

void DecisionRound::release_gpus(std::uint32_t j) {
    held_before_[j] = placer_.cells_of(input_.ids[j]);
    placer_.release(input_.ids[j]);
    if (places_) places_->stop(j);
}

// Uses the cells that the job held before. Other cells would serve this job as well, but might leave no place for other
// jobs.
bool DecisionRound::put_back(PlaceRequest place_request, const Placement& placement, std::span<const HeldCell> held) {
    place_request.cells = held;
    return placer_.place_at(place_request, placement);
}

// Gives a job that runs opportunistically a claim to its GPUs. If that fails, the job runs on without a claim.
void DecisionRound::take_claim(std::uint32_t j, Actions& actions) {
    bool has_claim = placer_.set_opportunistic(input_.ids[j], false);
    if (!has_claim && stop_unwanted(false)) has_claim = placer_.set_opportunistic(input_.ids[j], false);
    if (has_claim) {
        actions.promoted.push_back(j);
    } else {
        claims_not_taken_.insert(jobs_[j]->spec->tenant);
    }
    fates_[j] = Fate::keeps;
}

// Room was kept for jobs that were to get a claim to their GPUs, but other tenants' cells are there. This room goes to
// the jobs for which it was too little before.
void DecisionRound::place_unclaimed(Actions& actions) {
    for (const Pending& pending : unclaimed_) {
        const JobSpec& spec = *jobs_[pending.want->job]->spec;
        if (!claims_not_taken_.contains(spec.tenant) || is_held_up(*jobs_[pending.want->job])) continue;
        if (quotas_.allowed(spec, pending.gpus) < pending.gpus) continue;
        if (place(pending, actions)) quotas_.take(spec.tenant, pending.gpus);
    }
}

// Stops all running jobs that are not wanted, once a wanted job finds no place. If claims count, an unwanted job
// only gives up its claim, and stops when its GPUs are taken. No job with a claim stops for one without. Returns false
// if there was nothing to stop, or if this was done before.
bool DecisionRound::stop_unwanted(bool opportunistic_only) {
    bool& done = opportunistic_only ? opportunistic_stopped_ : unwanted_stopped_;
    if (unwanted_stopped_ || std::exchange(done, true)) return false;
    const std::size_t before = stopped_.size() + demoted_.size();
    for (std::uint32_t j = 0; j < jobs_.size(); ++j) {
        if (!jobs_[j]->running || !is_unwanted(j) || is_stopped_[j]) continue;
        if (opportunistic_only && !jobs_[j]->spec->opportunistic) continue;
        const bool had_claim = jobs_[j]->packed_with == nullptr && !jobs_[j]->opportunistic;
        if (had_claim && placer_.set_opportunistic(input_.ids[j], true)) {
            demoted_.push_back(j);
        } else {
            stop(j);
        }
    }
    return stopped_.size() + demoted_.size() > before;
}

PlaceRequest DecisionRound::request(std::uint32_t j, std::uint32_t gpus, std::uint32_t type, bool opportunistic) const {
    PlaceRequest place_request{.job = input_.ids[j],
                               .tenant = jobs_[j]->spec->tenant,
                               .gpus = gpus,
                               .gpu_type = type,
                               .priority = jobs_[j]->spec->priority,
                               .opportunistic = opportunistic,
                               .near = {},
                               .rate_by_nodes = jobs_[j]->spec->rate_by_nodes,
                               .shape = &jobs_[j]->spec->shape};
    if (input_.near == nullptr) return place_request;
    place_request.near = input_.near(input_.context, j);
    const double ideal = ideal_rate(*jobs_[j]->spec, type, gpus);
    if (ideal > 0) place_request.rate_far = expected_rate_far(input_.snapshot, *jobs_[j], type, gpus) / ideal;
    return place_request;
}

bool DecisionRound::place(const Pending& pending, Actions& actions) {
    const Want& want = *pending.want;
    const PlaceRequest place_request = request(want.job, pending.gpus, pending.gpu_type, want.opportunistic);
    const JobState& job = *jobs_[want.job];
    if (is_stopped_[want.job] && job.gpu_type == pending.gpu_type && job.opportunistic == want.opportunistic) {
        Placement wanted = resized(want.job, std::min(pending.gpus, job.gpus + 1), pending.gpus);
        Pending resize = pending;
        resize.gpus = gpu_count(wanted);
        const PlaceRequest resize_request = request(want.job, resize.gpus, resize.gpu_type, want.opportunistic);
        if (!wanted.empty() && put_back(resize_request, wanted, held_before_[want.job])) {
            if (places_) places_->start({.job = want.job, .gpus = resize.gpus, .gpu_type = job.gpu_type}, wanted);
            start(resize, std::move(wanted), actions);
            return true;
        }
        if (keeps_size(pending)) return true;
    }
    auto placed = placer_.place(place_request);
    if (!placed) return false;
    for (const JobId evicted : placed->evicted) evict(evicted, actions);
    // A gang that evicts others takes the place for which they are evicted.
    if (placed->evicted.empty()) {
        const Gang gang{.job = want.job, .gpus = pending.gpus, .gpu_type = pending.gpu_type};
        placed->placement = best_place(gang, place_request, std::move(placed->placement));
    }
    start(pending, std::move(placed->placement), actions);
    return true;
}

// Puts a stopped job that only a restart would let grow back on its GPUs, unless that gains more than it costs. The
// policy counted on a resize.
bool DecisionRound::keeps_size(const Pending& pending) {
    const std::uint32_t j = pending.want->job;
    const JobState& job = *jobs_[j];
    if (!job.spec->resizable || pending.gpus <= job.gpus) return false;
    const Growing grown{.job = j, .gpu_type = pending.gpu_type, .gpus = pending.gpus};
    if (is_growth_worthwhile(grown, job.gpus, 1, false, kNever) || !restore_stopped(j)) return false;
    std::erase(stopped_, j);
    return true;
}

// The gang has the GPUs of `usual`. Moves it if another place makes a better plan. Returns where it is.
Placement DecisionRound::best_place(const Gang& gang, const PlaceRequest& place_request, Placement usual) {
    if (!input_.plan_input) return usual;
    if (!places_) {
        places_.emplace(input_.snapshot, input_.plan_input());
        for (std::uint32_t j = 0; j < jobs_.size(); ++j) {
            if (is_stopped_[j]) places_->stop(j);
        }
    }
    const JobSpec& spec = *jobs_[gang.job]->spec;
    // The nodes of other gangs follow from their shapes.
    if (spec.shape.is_free()) {
        const std::vector<HeldCell> held = placer_.cells_of(place_request.job);
        placer_.release(place_request.job);
        const PlacesByPlan::Rules rules{.free_on = [&](std::uint32_t node) { return placer_.free_on(node); },
                                        .allows =
                                            [&](const Placement& placement) {
                                                if (!placer_.place_at(place_request, placement)) return false;
                                                placer_.release(place_request.job);
                                                return true;
                                            },
                                        // Cells promise gangs the fewest nodes.
                                        .nodes_max = room_.has_claims() ? usual.size() : kAllGpus};
        Placement best = places_->choose(gang, usual, rules);
        const bool is_usual = best == usual;
        const bool placed = put_back(place_request, best, is_usual ? held : std::vector<HeldCell>());
        LARDER_ASSERT(placed);
        usual = std::move(best);
    }
    places_->start(gang, usual);
    return usual;
}

bool DecisionRound::pack(const Pending& pending, Actions& actions) {
    const std::uint32_t host = *pending.want->packed_with;
    Placement placement;
    std::uint32_t type = 0;
    if (fates_[host] == Fate::keeps) {
        placement = jobs_[host]->placement;
        type = jobs_[host]->gpu_type;
    } else if (fates_[host] == Fate::starts) {
        const auto started = std::ranges::find(actions.starts, host, &Start::job);
        placement = started->placement;
        type = started->gpu_type;
    } else {
        return false;
    }
    const auto is_usable = [&](const NodeGpus& share) { return placer_.is_usable(share.node); };
    if (!std::ranges::all_of(placement, is_usable)) return false;
    Pending on_host_type = pending;
    on_host_type.gpu_type = type;
    start(on_host_type, std::move(placement), actions);
    return true;
}

void DecisionRound::start(const Pending& pending, Placement placement, Actions& actions) {
    const Want& want = *pending.want;
    fates_[want.job] = Fate::starts;
    actions.starts.push_back({.job = want.job,
                              .gpus = pending.gpus,
                              .gpu_type = pending.gpu_type,
                              .opportunistic = want.opportunistic,
                              .placement = std::move(placement),
                              .packed_with = want.packed_with});
}

// Stops the guests of stopped jobs.
void DecisionRound::stop_guests(Actions& actions) {
    for (std::uint32_t j = 0; j < jobs_.size(); ++j) {
        if (!jobs_[j]->running || jobs_[j]->packed_with == nullptr) continue;
        const auto stops = [&](std::uint32_t stopped) { return jobs_[stopped] == jobs_[j]->packed_with; };
        if (std::ranges::none_of(actions.stops, stops)) continue;
        if (std::ranges::find(actions.stops, j) == actions.stops.end()) actions.stops.push_back(j);
        if (fates_[j] == Fate::keeps) fates_[j] = Fate::unplaced;
    }
}

// Records that the placer took the job's GPUs for another job.
void DecisionRound::evict(JobId id, Actions& actions) {
    const auto at = std::ranges::find(input_.ids, id);
    LARDER_ASSERT(at != input_.ids.end());
    const auto j = static_cast<std::uint32_t>(at - input_.ids.begin());
    const JobState& job = *jobs_[j];
    const auto started = std::ranges::find(actions.starts, j, &Start::job);
    const bool wanted = fates_[j] == Fate::keeps || fates_[j] == Fate::starts;
    if (job.spec->opportunistic && wanted) {
        const bool starts = started != actions.starts.end();
        evicted_.push_back({.job = j,
                            .gpus = starts ? started->gpus : job.gpus,
                            .gpu_type = starts ? started->gpu_type : job.gpu_type});
    }
    if (started != actions.starts.end()) actions.starts.erase(started);
    if (job.running && !is_stopped_[j]) {
        stopped_.push_back(j);
        is_stopped_[j] = true;
    }
    fates_[j] = Fate::unplaced;
}

void DecisionRound::place_evicted(Actions& actions) {
    for (const Evicted& one : evicted_) {
        if (fates_[one.job] != Fate::unplaced) continue;
        auto placed = placer_.place(request(one.job, one.gpus, one.gpu_type, true));
        if (!placed) continue;
        fates_[one.job] = Fate::starts;
        actions.starts.push_back({.job = one.job,
                                  .gpus = one.gpus,
                                  .gpu_type = one.gpu_type,
                                  .opportunistic = true,
                                  .placement = std::move(placed->placement),
                                  .packed_with = std::nullopt});
    }
}

// Moves the job if another place has fewer nodes, else puts it back where it was.
void DecisionRound::move(std::uint32_t j, Actions& actions) {
    const JobState& job = *jobs_[j];
    if (fates_[j] != Fate::keeps || is_stopped_[j]) return;
    release_gpus(j);
    const PlaceRequest place_request = request(j, job.gpus, job.gpu_type, job.opportunistic);
    const std::size_t stopped_before = stopped_.size();
    auto placed = placer_.place(place_request);
    if (placed) {
        for (const JobId evicted : placed->evicted) evict(evicted, actions);
        actions.stops.insert(actions.stops.end(), stopped_.begin() + static_cast<std::ptrdiff_t>(stopped_before),
                             stopped_.end());
    }
    if (placed && placed->placement.size() >= job.placement.size()) {
        placer_.release(input_.ids[j]);
        placed.reset();
    }
    if (!placed && put_back(place_request, job.placement, held_before_[j])) {
        if (places_) places_->start({.job = j, .gpus = job.gpus, .gpu_type = job.gpu_type}, job.placement);
        return;
    }
    stopped_.push_back(j);
    is_stopped_[j] = true;
    actions.stops.push_back(j);
    fates_[j] = placed ? Fate::starts : Fate::unplaced;  // unplaced: its old node is lost or drained
    if (!placed) return;
    actions.starts.push_back({.job = j,
                              .gpus = job.gpus,
                              .gpu_type = job.gpu_type,
                              .opportunistic = job.opportunistic,
                              .placement = std::move(placed->placement),
                              .packed_with = std::nullopt});
}

// Puts a stopped job back on its GPUs. Returns false if another job took them, or if the job is a guest.
bool DecisionRound::restore_stopped(std::uint32_t j) {
    const JobState& job = *jobs_[j];
    if (job.packed_with != nullptr) return false;
    const PlaceRequest place_request = request(j, job.gpus, job.gpu_type, job.opportunistic);
    // `held_before_` has no cells of a job that the placer evicted.
    if (!put_back(place_request, job.placement, held_before_[j])) return false;
    if (places_) places_->start({.job = j, .gpus = job.gpus, .gpu_type = job.gpu_type}, job.placement);
    fates_[j] = Fate::keeps;
    is_stopped_[j] = false;
    return true;
}

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

// Returns at most `most` GPUs with which the running job goes on without a restart: it keeps its first node, and gives
// up some of the others, or gets some more. Empty: there are not `least` such GPUs.
Placement DecisionRound::resized(std::uint32_t j, std::uint32_t least, std::uint32_t most) const {
    const JobState& job = *jobs_[j];
    const bool may_resize = job.spec->resizable && job.spec->shape.needs_no_cells() && input_.cluster != nullptr;
    if (!may_resize || job.packed_with != nullptr || job.placement.empty()) return {};
    Placement placement = job.placement;
    while (placement.size() > 1 && gpu_count(placement) > most) placement.pop_back();
    if (most > job.gpus && !job.resizing) add_nodes(placement, *job.spec, job.gpu_type, most - job.gpus);
    const std::uint32_t gpus = gpu_count(placement);
    return gpus >= least && gpus <= most ? placement : Placement();
}

// Adds free GPUs of nodes that the placement lacks, at most as many on each as on the first node.
void DecisionRound::add_nodes(Placement& placement, const JobSpec& spec, std::uint32_t gpu_type,
                              std::uint32_t gpus) const {
    const std::vector<GpuNode>& nodes = input_.cluster->nodes;
    std::vector<bool> is_used(nodes.size());
    for (const NodeGpus& share : placement) is_used[share.node] = true;
    std::vector<NodeGpus> free;  // the fullest nodes first
    for (std::uint32_t n = 0; n < nodes.size(); ++n) {
        if (nodes[n].gpu_type != gpu_type || is_used[n]) continue;
        NodeGpus share{.node = n, .gpus = placer_.free_on(n)};
        const std::uint32_t usable = spec.usable_of(share.count());
        while (share.count() > usable) share.gpus &= share.gpus - 1;
        if (share.gpus != 0) free.push_back(share);
    }
    std::ranges::stable_sort(free, {}, &NodeGpus::count);
    const std::uint32_t most_on_node = placement.front().count();
    while (gpus > 0 && !free.empty()) {
        const std::uint32_t wanted = std::min(gpus, most_on_node);
        // The fullest node that has enough, else the emptiest.
        const std::uint32_t least = std::min(wanted, free.back().count());
        const auto best = std::ranges::lower_bound(free, least, {}, &NodeGpus::count);
        NodeGpus share = *best;
        free.erase(best);
        while (share.count() > wanted) share.gpus &= share.gpus - 1;
        gpus -= share.count();
        placement.push_back(share);
    }
}

// Lets grown jobs keep their GPUs as far as room, quotas and claims allow, and shrinks them by the rest.
void DecisionRound::keep_grown(Actions& actions) {
    for (const Grown& grown : grown_) {
        const JobState& job = *jobs_[grown.job];
        const bool claims = !job.opportunistic;
        std::uint32_t more =
            std::min({room_.left(job.gpu_type), quotas_.left(job.spec->tenant), job.gpus - grown.gpus});
        if (claims) more = std::min(more, room_.claim_left(*job.spec, job.gpu_type));
        more = job.spec->usable_of(more);
        if (grown.gpus + more < job.gpus) {
            const std::uint32_t kept = shrink(grown.job, grown.gpus, grown.gpus + more, actions);
            more = std::max(kept, grown.gpus) - grown.gpus;
        }
        take(*job.spec, job.gpu_type, more, claims);
    }
}

// Shrinks all grown jobs to make a place for a gang: enough GPUs are left, but not in a place where the gang may run.
// Does so only once per round. Returns false if no job shrank.
bool DecisionRound::shrink_grown(Actions& actions) {
    if (grown_shrunk_) return false;
    grown_shrunk_ = true;
    for (const Grown& grown : grown_) {
        if (is_stopped_[grown.job] || fates_[grown.job] != Fate::keeps) continue;
        shrink(grown.job, grown.gpus, grown.gpus, actions);
        if (fates_[grown.job] == Fate::starts) shrunk_.push_back(grown.job);
    }
    return !shrunk_.empty();
}

// Leaves the job `gpus` GPUs, or fewer, but not below `least`, if that spares it a restart. Returns how many; 0: the
// job has no place.
std::uint32_t DecisionRound::shrink(std::uint32_t j, std::uint32_t least, std::uint32_t gpus, Actions& actions) {
    const JobState& job = *jobs_[j];
    stop(j);
    Placement placement = resized(j, least, gpus);
    if (placement.empty()) placement = part_of(job.placement, gpus);
    gpus = gpu_count(placement);
    const PlaceRequest place_request = request(j, gpus, job.gpu_type, job.opportunistic);
    if (!put_back(place_request, placement, held_before_[j])) {  // one of its nodes is lost or drained
        auto placed = placer_.place(place_request);
        fates_[j] = Fate::unplaced;
        if (!placed) return 0;
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
    return gpus;
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
        if (gpus < spec.gpus_max && spec.preemptible && !spec.opportunistic && !jobs_[j]->resizing) {
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

// True if growing gains more than its changes cost. A running job restarts to grow, or is resized, and any job is
// changed once more if waiting jobs need the room before it ends.
bool DecisionRound::is_growth_worthwhile(const Growing& grown, std::uint32_t gpus_before, std::size_t nodes,
                                         bool goes_on, double horizon_s) const {
    const JobState& job = *jobs_[grown.job];
    const double before = expected_rate(input_.snapshot, job, grown.gpu_type, gpus_before);
    const double after = expected_rate(input_.snapshot, job, grown.gpu_type, grown.gpus) *
                         consolidation(*job.spec, static_cast<std::uint32_t>(nodes), 1);
    if (before <= 0) return after > 0;
    const double end_s = job.remaining_bytes / before;
    const int changes = (job.running ? 1 : 0) + (horizon_s < end_s ? 1 : 0);
    const double change_s =
        goes_on ? kResizePart * job.spec->restart_s : std::max(job.spec->restart_s, kRestartLeast_s);
    return gain_exceeds_restarts(before, after, std::min(end_s, horizon_s), change_s, changes);
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

// Grows the job if that is worthwhile at the place found, else leaves the job as it is.
void DecisionRound::grow(const Growing& grown, double horizon_s, Actions& actions) {
    const std::uint32_t j = grown.job;
    const JobState& job = *jobs_[j];
    const auto started = std::ranges::find(actions.starts, j, &Start::job);
    const bool runs = started == actions.starts.end();
    const std::uint32_t before = runs ? job.gpus : started->gpus;
    const Placement placement = runs ? job.placement : started->placement;
    Growing to = grown;
    to.gpus = before + job.spec->usable_of(std::min({grown.gpus - before, quotas_.left(job.spec->tenant),
                                                     room_.claim_left(*job.spec, to.gpu_type)}));
    if (to.gpus == before) return;
    Placement wider = runs ? resized(j, before + 1, to.gpus) : Placement();
    if (!wider.empty()) to.gpus = gpu_count(wider);
    bool goes_on = !wider.empty();
    if (!is_growth_worthwhile(to, before, 1, goes_on, horizon_s)) return;
    const std::vector<HeldCell> held = placer_.cells_of(input_.ids[j]);
    placer_.release(input_.ids[j]);
    std::optional<Placed> placed;
    goes_on = goes_on && put_back(request(j, to.gpus, to.gpu_type, false), wider, held);
    if (goes_on) {
        placed = Placed{.placement = std::move(wider), .evicted = {}};
    } else {
        placed = placer_.place(request(j, to.gpus, to.gpu_type, false));
    }
    const std::size_t stopped_before = stopped_.size();
    if (placed) {
        for (const JobId evicted : placed->evicted) evict(evicted, actions);
        actions.stops.insert(actions.stops.end(), stopped_.begin() + static_cast<std::ptrdiff_t>(stopped_before),
                             stopped_.end());
    }
    if (placed && !is_growth_worthwhile(to, before, placed->placement.size(), goes_on, horizon_s)) {
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
