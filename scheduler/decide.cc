#include "scheduler/decide.h"

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

#include "base/assert.h"
#include "scheduler/quota.h"

namespace larder::scheduler {
namespace {

enum class Fate : std::uint8_t {
    out,      // waits, and was not wanted
    keeps,    // runs on as it is
    pending,  // wanted, with GPUs it does not have
    blocked,  // wanted, but too few GPUs are left by those before it
    over_quota,
    refused,  // its deadline cannot be met
    unplaced,
    starts,
};

// The wishes by priority; what was promised goes before, and a packed job goes with its host.
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

class Deciding {
public:
    Deciding(const DecideInput& input, Placer& placer, bool preempts)
        : input_(input),
          jobs_(input.snapshot.jobs),
          placer_(placer),
          preempts_(preempts),
          fates_(jobs_.size(), Fate::out),
          is_stopped_(jobs_.size()),
          stays_(jobs_.size()),
          quotas_(input.snapshot.tenants) {
        for (const GpuTypeState& type : input.snapshot.gpu_types) left_.push_back(type.gpus);
        for (std::uint32_t j = 0; j < jobs_.size(); ++j) {
            const JobState& job = *jobs_[j];
            if (!job.running || (preempts && job.spec->preemptible) || job.opportunistic) continue;
            keep(j);
        }
    }

    void choose(const Decision& decision) {
        for (const Refused& refused : decision.refused) {
            if (fates_[refused.job] == Fate::out) fates_[refused.job] = Fate::refused;
        }
        for (const Want* const asked : by_priority(decision, jobs_)) {
            const Want& want = *asked;
            if (fates_[want.job] != Fate::out) continue;
            const JobState& job = *jobs_[want.job];
            const std::uint32_t gpus = want.packed_with ? want.gpus : quotas_.allowed(*job.spec, want.gpus);
            if (gpus == 0) {
                fates_[want.job] = Fate::over_quota;
                continue;
            }
            const bool as_it_is = job.running && job.gpus == gpus && !want.packed_with && job.packed_with == nullptr &&
                                  (want.gpu_type == kAnyGpuType || want.gpu_type == job.gpu_type) &&
                                  job.opportunistic == want.opportunistic;
            if (as_it_is && left_[job.gpu_type] >= gpus) {
                keep(want.job);
                if (want.moves) moves_.push_back(want.job);
                continue;
            }
            const bool packed_still = want.packed_with && job.running && job.packed_with == jobs_[*want.packed_with] &&
                                      fates_[*want.packed_with] == Fate::keeps;
            if (packed_still) {
                fates_[want.job] = Fate::keeps;
                continue;
            }
            const std::uint32_t type = want.packed_with ? 0 : type_with_room(want, gpus);
            if (type == kAnyGpuType) {
                fates_[want.job] = Fate::blocked;
                if (!decision.passes_over) break;
                hold_up(decision, job);
                continue;
            }
            if (is_held_up(job)) {
                fates_[want.job] = Fate::blocked;
                continue;
            }
            // What a tenant's queue asks for says nothing about what is left for the others: only a place does.
            if (!want.packed_with && !decision.holds_up_tenant) {
                left_[type] -= gpus;
                quotas_.take(job.spec->tenant, gpus);
            }
            fates_[want.job] = Fate::pending;
            stays_[want.job] = job.running && job.opportunistic && !want.opportunistic && job.gpus == gpus &&
                               job.gpu_type == type && !want.packed_with && job.packed_with == nullptr;
            pending_.push_back({.want = &want, .gpus = gpus, .gpu_type = type});
        }
    }

    void carry_out(const Decision& decision, Actions& actions) {
        for (std::uint32_t j = 0; j < jobs_.size(); ++j) {
            if (jobs_[j]->running && ((fates_[j] == Fate::pending && !stays_[j]) || must_go(j))) stop(j);
        }
        for (const Pending& pending : pending_) {
            if (stays_[pending.want->job] && !is_stopped_[pending.want->job]) {
                take_claim(pending.want->job, actions);
                continue;
            }
            if (is_held_up(*jobs_[pending.want->job])) {
                fates_[pending.want->job] = Fate::blocked;
                continue;
            }
            bool placed = pending.want->packed_with ? pack(pending, actions) : place(pending, actions);
            if (!placed && !pending.want->packed_with && stop_unwanted()) placed = place(pending, actions);
            if (placed) continue;
            fates_[pending.want->job] = Fate::unplaced;
            if (!decision.passes_over) break;
            hold_up(decision, *jobs_[pending.want->job]);
        }
        for (const std::uint32_t j : stopped_) {
            if (fates_[j] == Fate::starts || must_go(j) || !takes_up_again(j)) actions.stops.push_back(j);
        }
        for (const std::uint32_t j : demoted_) {
            if (is_stopped_[j]) continue;
            fates_[j] = Fate::keeps;
            if (!placer_.set_opportunistic(input_.ids[j], false)) actions.demoted.push_back(j);
        }
        for (const std::uint32_t j : moves_) move(j, actions);
        stop_guests(actions);
        for (const Want& want : decision.wants) {
            const Fate fate = fates_[want.job];
            if (want.lease_s <= 0 || (fate != Fate::keeps && fate != Fate::starts)) continue;
            const double until = input_.snapshot.now_s + want.lease_s;
            if (fate == Fate::starts || !holds_lease(*jobs_[want.job], input_.snapshot.now_s)) {
                actions.leases.emplace_back(want.job, until);
            }
        }
        actions.admitted = decision.admitted;
        actions.refused = decision.refused;
        actions.promised = decision.promised;
    }

    WaitsFor waits_for(std::uint32_t j) const {
        const JobSpec& spec = *jobs_[j]->spec;
        if (jobs_[j]->running && !is_stopped_[j]) return WaitsFor::nothing;
        switch (fates_[j]) {
            case Fate::keeps:
            case Fate::starts: return WaitsFor::nothing;
            case Fate::over_quota: return WaitsFor::quota;
            case Fate::refused: return WaitsFor::deadline;
            case Fate::unplaced:
            case Fate::out:
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
        return fates_[j] == Fate::unplaced ? WaitsFor::place : WaitsFor::turn;
    }

private:
    void hold_up(const Decision& decision, const JobState& job) {
        if (decision.holds_up_tenant) held_up_.insert(job.spec->tenant);
    }
    bool is_held_up(const JobState& job) const { return held_up_.contains(job.spec->tenant); }

    struct Pending {
        const Want* want = nullptr;
        std::uint32_t gpus = 0;
        std::uint32_t gpu_type = 0;
    };

    static bool may_run_on(const JobSpec& spec, std::uint32_t type) {
        return spec.ideal_bytes_per_second[type] > 0 && (spec.gpu_type == kAnyGpuType || spec.gpu_type == type);
    }

    void keep(std::uint32_t j) {
        const JobState& job = *jobs_[j];
        if (fates_[j] == Fate::keeps) return;
        fates_[j] = Fate::keeps;
        if (job.packed_with != nullptr) return;
        left_[job.gpu_type] -= std::min(left_[job.gpu_type], job.gpus);
        quotas_.take(job.spec->tenant, job.gpus);
    }

    // A guest slows its host down, so it does not stay where it is not wanted; nor does what a quota has no room for.
    bool must_go(std::uint32_t j) const {
        const bool unwanted = fates_[j] == Fate::out || fates_[j] == Fate::blocked || fates_[j] == Fate::over_quota;
        return preempts_ && unwanted && (jobs_[j]->packed_with != nullptr || fates_[j] == Fate::over_quota);
    }

    // The type it asks for, or the one it is fastest on of those with so many left.
    std::uint32_t type_with_room(const Want& want, std::uint32_t gpus) const {
        const JobSpec& spec = *jobs_[want.job]->spec;
        std::uint32_t best = kAnyGpuType;
        for (std::uint32_t type = 0; type < left_.size(); ++type) {
            if (left_[type] < gpus || !may_run_on(spec, type)) continue;
            if (want.gpu_type != kAnyGpuType && want.gpu_type != type) continue;
            if (best == kAnyGpuType || spec.ideal_bytes_per_second[type] > spec.ideal_bytes_per_second[best])
                best = type;
        }
        return best;
    }

    // Packed jobs have no GPUs of their own to give back.
    void stop(std::uint32_t j) {
        stopped_.push_back(j);
        is_stopped_[j] = true;
        if (jobs_[j]->packed_with == nullptr) placer_.release(input_.ids[j]);
    }

    // It runs opportunistically, and is to have a claim to the GPUs it has. Without one it runs on as it does.
    void take_claim(std::uint32_t j, Actions& actions) {
        bool has_claim = placer_.set_opportunistic(input_.ids[j], false);
        if (!has_claim && stop_unwanted()) has_claim = placer_.set_opportunistic(input_.ids[j], false);
        if (has_claim) actions.promoted.push_back(j);
        fates_[j] = Fate::keeps;
    }

    // What runs and was not wanted goes, all of it, as soon as one that was wanted finds no place; where claims count,
    // it gives up its claim first, and goes when its GPUs are taken. False: gone already.
    bool stop_unwanted() {
        if (std::exchange(unwanted_stopped_, true)) return false;
        const std::size_t before = stopped_.size() + demoted_.size();
        for (std::uint32_t j = 0; j < jobs_.size(); ++j) {
            const bool unwanted = fates_[j] == Fate::out || fates_[j] == Fate::blocked || fates_[j] == Fate::refused;
            if (!jobs_[j]->running || !unwanted || is_stopped_[j]) continue;
            const bool had_claim = jobs_[j]->packed_with == nullptr && !jobs_[j]->opportunistic;
            if (had_claim && placer_.set_opportunistic(input_.ids[j], true)) {
                demoted_.push_back(j);
            } else {
                stop(j);
            }
        }
        return stopped_.size() + demoted_.size() > before;
    }

    PlaceRequest request(std::uint32_t j, std::uint32_t gpus, std::uint32_t type, bool opportunistic) const {
        PlaceRequest asked{.job = input_.ids[j],
                           .tenant = jobs_[j]->spec->tenant,
                           .gpus = gpus,
                           .gpu_type = type,
                           .priority = jobs_[j]->spec->priority,
                           .opportunistic = opportunistic,
                           .near = {},
                           .rate_by_nodes = jobs_[j]->spec->rate_by_nodes};
        if (input_.near == nullptr) return asked;
        asked.near = input_.near(input_.context, j);
        const double ideal = ideal_rate(*jobs_[j]->spec, type, gpus);
        if (ideal > 0) asked.rate_far = expected_rate(input_.snapshot, *jobs_[j], type, gpus) / ideal;
        return asked;
    }

    bool place(const Pending& pending, Actions& actions) {
        const Want& want = *pending.want;
        auto placed = placer_.place(request(want.job, pending.gpus, pending.gpu_type, want.opportunistic));
        if (!placed) return false;
        for (const JobId evicted : placed->evicted) evict(evicted, actions);
        start(pending, std::move(placed->placement), actions);
        return true;
    }

    bool pack(const Pending& pending, Actions& actions) {
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
        start({.want = pending.want, .gpus = pending.gpus, .gpu_type = type}, std::move(placement), actions);
        return true;
    }

    void start(const Pending& pending, Placement placement, Actions& actions) {
        const Want& want = *pending.want;
        fates_[want.job] = Fate::starts;
        actions.starts.push_back({.job = want.job,
                                  .gpus = pending.gpus,
                                  .gpu_type = pending.gpu_type,
                                  .opportunistic = want.opportunistic,
                                  .placement = std::move(placement),
                                  .packed_with = want.packed_with});
    }

    // Who shares GPUs with a job that goes, goes too.
    void stop_guests(Actions& actions) {
        for (std::uint32_t j = 0; j < jobs_.size(); ++j) {
            if (!jobs_[j]->running || jobs_[j]->packed_with == nullptr) continue;
            const auto stops = [&](std::uint32_t stopped) { return jobs_[stopped] == jobs_[j]->packed_with; };
            if (std::ranges::none_of(actions.stops, stops)) continue;
            if (std::ranges::find(actions.stops, j) == actions.stops.end()) actions.stops.push_back(j);
            if (fates_[j] == Fate::keeps) fates_[j] = Fate::unplaced;
        }
    }

    // The placer took its GPUs for another one.
    void evict(JobId id, Actions& actions) {
        const auto at = std::ranges::find(input_.ids, id);
        LARDER_ASSERT(at != input_.ids.end());
        const auto j = static_cast<std::uint32_t>(at - input_.ids.begin());
        std::erase_if(actions.starts, [&](const Start& start) { return start.job == j; });
        if (jobs_[j]->running && !is_stopped_[j]) {
            stopped_.push_back(j);
            is_stopped_[j] = true;
        }
        fates_[j] = Fate::unplaced;
    }

    // Elsewhere if that is on fewer nodes, else back to where it was.
    void move(std::uint32_t j, Actions& actions) {
        const JobState& job = *jobs_[j];
        if (fates_[j] != Fate::keeps || is_stopped_[j]) return;
        placer_.release(input_.ids[j]);
        const PlaceRequest asked = request(j, job.gpus, job.gpu_type, job.opportunistic);
        const std::size_t stopped_before = stopped_.size();
        auto placed = placer_.place(asked);
        if (placed) {
            for (const JobId evicted : placed->evicted) evict(evicted, actions);
            actions.stops.insert(actions.stops.end(), stopped_.begin() + static_cast<std::ptrdiff_t>(stopped_before),
                                 stopped_.end());
        }
        if (placed && placed->placement.size() >= job.placement.size()) {
            placer_.release(input_.ids[j]);
            placed.reset();
        }
        if (!placed && placer_.place_at(asked, job.placement)) return;
        stopped_.push_back(j);
        is_stopped_[j] = true;
        actions.stops.push_back(j);
        fates_[j] = placed ? Fate::starts : Fate::unplaced;  // not even where it was: that node is lost or drained
        if (!placed) return;
        actions.starts.push_back({.job = j,
                                  .gpus = job.gpus,
                                  .gpu_type = job.gpu_type,
                                  .opportunistic = job.opportunistic,
                                  .placement = std::move(placed->placement),
                                  .packed_with = std::nullopt});
    }

    // It was to be stopped, but nobody took its GPUs.
    bool takes_up_again(std::uint32_t j) {
        const JobState& job = *jobs_[j];
        if (job.packed_with != nullptr) return false;
        if (!placer_.place_at(request(j, job.gpus, job.gpu_type, job.opportunistic), job.placement)) return false;
        fates_[j] = Fate::keeps;
        is_stopped_[j] = false;
        return true;
    }

    const DecideInput& input_;
    std::span<const JobState* const> jobs_;
    Placer& placer_;
    bool preempts_;
    std::vector<Fate> fates_;
    std::vector<bool> is_stopped_;
    std::vector<bool> stays_;          // wanted just where it is, but with a claim
    std::vector<std::uint32_t> left_;  // GPUs by type
    std::set<std::uint32_t> held_up_;  // tenants
    Quotas quotas_;
    std::vector<Pending> pending_;
    std::vector<std::uint32_t> moves_;
    std::vector<std::uint32_t> stopped_;
    std::vector<std::uint32_t> demoted_;
    bool unwanted_stopped_ = false;
};

Result<void> check(const Policy& policy, const Snapshot& snapshot, const Decision& decision) {
    std::vector<bool> seen(snapshot.jobs.size());
    for (const Want& want : decision.wants) {
        const auto refuse = [&](const std::string& why) {
            return fail(ErrorCode::internal, "policy " + std::string(policy.name()) + ": " + why);
        };
        if (want.job >= snapshot.jobs.size()) return refuse("it wants a job that is not there");
        const JobSpec& spec = *snapshot.jobs[want.job]->spec;
        if (seen[want.job]) return refuse("it wants job \"" + spec.name + "\" twice");
        if (want.gpus < spec.gpus_min || want.gpus > spec.gpus_max) {
            return refuse("it wants job \"" + spec.name + "\" with " + std::to_string(want.gpus) + " GPUs");
        }
        if (want.packed_with && (*want.packed_with >= seen.size() || !seen[*want.packed_with])) {
            return refuse("it packs job \"" + spec.name + "\" with one it does not want before");
        }
        seen[want.job] = true;
    }
    for (const Refused& refused : decision.refused) {
        if (refused.job >= seen.size() || seen[refused.job]) {
            return fail(ErrorCode::internal, "policy " + std::string(policy.name()) + " refuses what it wants");
        }
    }
    return {};
}

// A policy's own failure must not take the daemon down.
Result<Decision> ask(Policy& policy, const Snapshot& snapshot) {
    try {
        return policy.decide(snapshot);
    } catch (const std::exception& thrown) {
        return fail(ErrorCode::internal, "policy " + std::string(policy.name()) + ": " + thrown.what());
    } catch (...) {
        return fail(ErrorCode::internal, "policy " + std::string(policy.name()) + ": it threw what is no exception");
    }
}

}  // namespace

Result<Actions> decide(Policy& policy, Placer& placer, const DecideInput& input, std::vector<WaitsFor>* waits_for) {
    LARDER_ASSERT(input.ids.size() == input.snapshot.jobs.size());
    const auto decision = ask(policy, input.snapshot);
    if (!decision) return std::unexpected(decision.error());
    if (auto valid = check(policy, input.snapshot, *decision); !valid) return std::unexpected(valid.error());

    Actions actions;
    actions.next_s = decision->next_s;
    Deciding deciding(input, placer, policy.preempts());
    deciding.choose(*decision);
    deciding.carry_out(*decision, actions);
    if (waits_for != nullptr) {
        waits_for->resize(input.snapshot.jobs.size());
        for (std::uint32_t j = 0; j < waits_for->size(); ++j) (*waits_for)[j] = deciding.waits_for(j);
    }
    return actions;
}

}  // namespace larder::scheduler
