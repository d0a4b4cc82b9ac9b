#include "scheduler/policies/chronus.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "scheduler/policies/admission_program.h"
#include "scheduler/policies/goals.h"

namespace larder::scheduler {
namespace {

constexpr std::uint32_t kLeasesMaxExact = 24;
constexpr std::size_t kJobsMaxExact = 24;

// A job that takes GPUs which neither promises nor urgent jobs need now.
struct Filler {
    bool waits_for_values = false;  // jobs with a value to lose go first
    double remaining_s = 0;
    std::uint32_t job = 0;  // index in Snapshot::jobs

    auto operator<=>(const Filler&) const = default;
};

Filler filler_of(const Snapshot& snapshot, std::uint32_t j, bool tight, bool will_be_worthless) {
    const JobState& job = *snapshot.jobs[j];
    Filler filler{.remaining_s = remaining_with_restart_s(snapshot, job), .job = j};
    const bool has_value = has_deadline(job) && value_of_end(*job.spec, snapshot.now_s + filler.remaining_s) > 0;
    filler.waits_for_values = tight && !has_value;
    if (will_be_worthless) {
        filler = {.waits_for_values = true, .remaining_s = kNever, .job = j};
    } else if (job.running) {
        // As in Shortest: a running job that the plan gives less would otherwise change places with a waiting job again
        // and again.
        filler.remaining_s = std::min(filler.remaining_s, remaining_if_waiting_s(snapshot, job));
    }
    return filler;
}

}  // namespace

// Makes a plan in which the GPUs are taken that jobs must keep: those of jobs that no policy may stop, and those of
// jobs within a lease. `leases_max` limits the number of leases, which are then wider; 0: no limit.
LeasePlan Chronus::make_plan(const Snapshot& snapshot, std::uint32_t leases_max) const {
    const double first_end_s = period_end_s(snapshot.now_s, lease_s_);
    double last_s = first_end_s;
    for (const JobState* const job : snapshot.jobs) {
        if (!has_deadline(*job)) continue;
        const std::vector<ValueUntil>& values = job->spec->values;
        last_s = std::max(last_s, values.empty() ? job->spec->deadline_s : values.back().until_s);
    }
    std::vector<double> ends_s = widening_ends_s(first_end_s, lease_s_, last_s);
    if (leases_max != 0 && ends_s.size() > leases_max) {
        ends_s.assign(1, first_end_s);
        const double periods_per_lease = std::ceil((last_s - first_end_s) / lease_s_ / (leases_max - 1));
        for (std::uint32_t lease = 1; lease < leases_max; ++lease) {
            ends_s.push_back(first_end_s + lease_s_ * periods_per_lease * lease);
        }
    }
    if (leases_max == 0) add_promised_ends(snapshot, ends_s);
    LeasePlan plan(snapshot, std::move(ends_s));
    for (const JobState* const job : snapshot.jobs) {
        if (is_unstoppable(*job)) {
            const double end_s = snapshot.now_s + expected_remaining_s(snapshot, *job);
            plan.hold(job->gpu_type, job->gpus, std::max(end_s, first_end_s), claim_of(*job));
        } else if (holds_lease(*job, snapshot.now_s)) {
            plan.take(job->gpu_type, 0, job->gpus, claim_of(*job));
        }
    }
    return plan;
}

// Replaces `plan_by_start`, made by admit_by_latest_start(), if the integer program promises more. The program may find
// less, because its leases are wider and its search may end early.
void Chronus::admit_by_program(const Snapshot& snapshot, LeasePlan& plan_by_start,
                               std::vector<Promise>& promises) const {
    const auto value_of = [](const Promise& promise) { return promise.strict ? 1.0 : 0.5; };
    LeasePlan plan = make_plan(snapshot, kLeasesMaxExact);
    std::vector<AdmissionCandidate> candidates;
    std::vector<std::size_t> promise_indices;
    double value_by_start = 0;
    for (std::size_t p = 0; p < promises.size(); ++p) {
        const Promise& promise = promises[p];
        const LeaseDemand& demand = promise.demand;
        if (promise.hopeless || demand.remaining_bytes == kNever) continue;
        if (!demand.preemptible || candidates.size() >= kJobsMaxExact) {
            if (promise.met) return;  // the program could give this job's leases to other jobs
            continue;
        }
        AdmissionCandidate candidate{
            .demand = &demand, .must_admit = promise.promised_before, .value = value_of(promise)};
        if (promise.within_lease) {
            candidate.holds_type = snapshot.jobs[demand.job]->gpu_type;
            plan.release(*candidate.holds_type, 0, demand.gpus, promise.holds_claim_of);
        }
        if (promise.met) value_by_start += candidate.value;
        candidates.push_back(candidate);
        promise_indices.push_back(p);
    }
    const auto found =
        scheduler::admit_by_program(plan, static_cast<std::uint32_t>(snapshot.gpu_types.size()), candidates);
    if (!found) return;
    double value = 0;
    for (std::size_t c = 0; c < candidates.size(); ++c) {
        if ((*found)[c].gpu_type != kNoGpuType) value += candidates[c].value;
    }
    if (value < value_by_start + 0.25) return;
    for (std::size_t c = 0; c < candidates.size(); ++c) {
        Promise& promise = promises[promise_indices[c]];
        promise.met = (*found)[c].gpu_type != kNoGpuType;
        if (promise.met) {
            promise.fit = (*found)[c];
            plan.take(promise.fit, promise.demand);
        } else if (promise.within_lease) {
            plan.take(*candidates[c].holds_type, 0, promise.demand.gpus, promise.holds_claim_of);
        }
    }
    plan_by_start = std::move(plan);
}

void Chronus::fill(const Snapshot& snapshot, const std::vector<Promise>& promises, LeasePlan& plan,
                   Decision& decision) const {
    const double lease_end_s = period_end_s(snapshot.now_s, lease_s_);
    Room room(snapshot);
    bool all_run = true;
    std::vector<bool> done(snapshot.jobs.size());
    std::vector<const Promise*> promise_of(snapshot.jobs.size());
    for (const Promise& promise : promises) {
        promise_of[promise.demand.job] = &promise;
        // A promised job that runs before its leases is decided upon again at the end of this lease.
        if (promise.met && !promise.fit.starts_now()) all_run = false;
    }
    for (const Want& want : decision.wants) {
        room.take(*snapshot.jobs[want.job], want);
        done[want.job] = true;
    }
    std::map<std::uint32_t, double> unpromised_ends_s;  // of waiting jobs with strict deadlines
    for (const Promise& promise : promises) {
        const std::uint32_t j = promise.demand.job;
        const bool waits = !promise.met && !promise.promised_before && !snapshot.jobs[j]->running;
        if (waits && promise.strict) unpromised_ends_s[j] = promise.fit.end_s;
        // A late result would be worthless. But the expected end may be wrong, and spare GPUs cost nothing.
        const JobSpec& spec = *snapshot.jobs[j]->spec;
        const bool may_try = spec.preemptible && snapshot.now_s < spec.deadline_s;
        if (waits && promise.strict && promise.hopeless && !may_try) {
            decision.refused.push_back({.job = j, .end_s = promise.fit.end_s});
            done[j] = true;
            all_run = false;
        }
    }
    const auto want_if_room = [&](std::uint32_t j, std::uint32_t type, bool promised) {
        if (done[j]) return;
        done[j] = true;
        const JobState& job = *snapshot.jobs[j];
        Want want = want_as_it_is(snapshot, j);
        if (!job.running && type != kAnyGpuType) want.gpu_type = type;
        if (!job.spec->preemptible) {
            // This job cannot be stopped later for promised jobs, so it must not take GPUs that they need.
            want.gpu_type = room.type_for(*job.spec, want.gpus);
            bool free = want.gpu_type != kNoGpuType;
            const double rate = free ? expected_rate(snapshot, job, want.gpu_type, want.gpus) : 0;
            const double end_s = snapshot.now_s + (rate > 0 ? job.remaining_bytes / rate : kNever);
            // A promised job must also not run where it would be late.
            free = free && (!promised || end_s <= job.spec->deadline_s);
            for (std::uint32_t lease = 1; free && lease < plan.leases() && plan.start_s(lease) < end_s; ++lease) {
                free = plan.free(want.gpu_type, lease) >= want.gpus &&
                       plan.claim_left(job.spec->tenant, want.gpu_type, lease) >= want.gpus;
            }
            if (!free) {
                all_run = false;
                return;
            }
            plan.hold(want.gpu_type, want.gpus, end_s, job.spec->tenant);
        }
        const bool has_room = room.take(job, want) != kNoGpuType;
        all_run = all_run && has_room;
        const auto unpromised = unpromised_ends_s.find(j);
        if (!has_room && unpromised != unpromised_ends_s.end()) {
            decision.refused.push_back({.job = j, .end_s = unpromised->second});
            return;
        }
        decision.wants.push_back(want);
    };
    const GoalPlan goals = plan_goals(snapshot, promises, plan);
    for (const UrgentJob& urgent : goals.urgent) want_if_room(urgent.job, urgent.gpu_type, false);
    std::vector<Filler> fillers;
    fillers.reserve(snapshot.jobs.size());
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        if (done[j]) continue;
        const Promise* const promise = promise_of[j];
        // Its deadline could be met neither with a promise nor beside those of others.
        const bool will_be_worthless =
            promise != nullptr && promise->strict && !promise->met && !promise->promised_before;
        fillers.push_back(filler_of(snapshot, j, goals.tight, will_be_worthless));
    }
    std::ranges::sort(fillers);
    for (const Filler& filler : fillers) {
        const Promise* const promise = promise_of[filler.job];
        const bool is_promised = promise != nullptr && promise->met;
        want_if_room(filler.job, is_promised ? promise->fit.gpu_type : kAnyGpuType, is_promised);
    }
    if (!all_run) decision.next_s = lease_end_s;
}

Result<Decision> Chronus::decide(const Snapshot& snapshot) {
    LeasePlan plan = make_plan(snapshot, 0);
    std::vector<Promise> promises = find_promises(snapshot, exact_);
    admit_by_latest_start(snapshot, plan, promises);
    const auto settled = [](const Promise& promise) { return promise.met || promise.hopeless; };
    if (exact_ && !std::ranges::all_of(promises, settled)) admit_by_program(snapshot, plan, promises);

    Decision decision;
    const double lease_s = period_end_s(snapshot.now_s, lease_s_) - snapshot.now_s;
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        const JobState& job = *snapshot.jobs[j];
        if (!is_unstoppable(job) && !holds_lease(job, snapshot.now_s)) continue;
        Want want = want_as_it_is(snapshot, j);
        want.promised = true;
        decision.wants.push_back(want);
    }
    for (const Promise& promise : promises) {
        const std::uint32_t j = promise.demand.job;
        if (promise.met && !promise.promised_before) decision.admitted.push_back(j);
        if (promise.met || promise.promised_before) {
            decision.promised.push_back(
                {.job = j, .times = promise.met ? plan.times_of(promise.fit) : PromisedTimes()});
        }
        if (!promise.met || promise.within_lease || !promise.fit.starts_now()) continue;
        Want want = want_as_it_is(snapshot, j);
        want.gpu_type = promise.fit.gpu_type;
        want.promised = true;
        // A job with time to spare gets no lease: it would hold up jobs that come later and have none.
        if (promise.latest_start_s <= snapshot.now_s + lease_s) want.lease_s = lease_s;
        decision.wants.push_back(want);
    }
    fill(snapshot, promises, plan, decision);
    return decision;
}

}  // namespace larder::scheduler
