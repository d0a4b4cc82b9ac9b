#include "scheduler/policies/promises.h"

#include <algorithm>
#include <tuple>

#include "scheduler/policies/wants.h"

namespace larder::scheduler {
namespace {

// The most calls of LeasePlan::fit for new jobs in one decision. After that, new jobs only get leases that the planned
// promises leave free.
constexpr std::size_t kFitsMax = 20'000;

// A plan with the leases of some promises.
struct PlannedPromises {
    LeasePlan plan;
    std::vector<std::size_t> indices;  // indices in `promises`
    std::vector<LeaseFit> fits;        // by position in `indices`
    bool all_met = true;
    std::size_t missed = 0;
};

class PromisePlanner {
public:
    PromisePlanner(const LeasePlan& base, std::span<const Promise> promises) : base_(base), promises_(promises) {}

    // Gives leases in the order of latest starts.
    PlannedPromises plan_in_order(std::vector<std::size_t> indices) const {
        std::ranges::sort(indices, {}, [&](std::size_t p) { return std::pair(promises_[p].latest_start_s, p); });
        PlannedPromises planned{.plan = base_, .indices = {}, .fits = {}};
        planned.indices.reserve(indices.size());
        planned.fits.reserve(indices.size());
        for (const std::size_t p : indices) add(planned, p, nullptr);
        return planned;
    }

    // Gives leases at the promised times. A promise whose times no longer work gets the latest leases that are left.
    PlannedPromises plan_at_promised_times(const Snapshot& snapshot, const std::vector<std::size_t>& indices) const {
        PlannedPromises planned{.plan = base_, .indices = {}, .fits = {}};
        std::vector<std::size_t> lost;
        for (const std::size_t p : indices) {
            const PromisedTimes& times = snapshot.jobs[promises_[p].demand.job]->promised;
            if (!add(planned, p, &times)) lost.push_back(p);
        }
        for (const std::size_t p : lost) add(planned, p, nullptr);
        return planned;
    }

    // Adds a promise with free leases, if these meet its deadline.
    void add_if_met(PlannedPromises& planned, std::size_t p) const {
        const LeaseDemand& demand = promises_[p].demand;
        if (planned.plan.fit_late(demand).meets(demand.deadline_s)) add(planned, p, nullptr);
    }

    // Returns the free leases in which the job would end earliest.
    LeaseFit fit_in(const PlannedPromises& planned, std::size_t p) const {
        return planned.plan.fit(promises_[p].demand);
    }

private:
    // With `times`, uses only these times, and adds nothing if they do not meet the deadline.
    bool add(PlannedPromises& planned, std::size_t p, const PromisedTimes* times) const {
        const Promise& promise = promises_[p];
        const LeaseDemand& demand = promise.demand;
        if (promise.within_lease) planned.plan.release(demand.runs_on, 0, demand.gpus, promise.holds_claim_of);
        LeaseFit fit = times == nullptr ? planned.plan.fit_late(demand) : planned.plan.follow(demand, *times);
        const bool met = fit.meets(demand.deadline_s);
        if (met) planned.plan.take(fit, demand);
        if (promise.within_lease && !(met && fit.starts_now() && fit.gpu_type == demand.runs_on)) {
            planned.plan.take(demand.runs_on, 0, demand.gpus, promise.holds_claim_of);
        }
        if (!met && times != nullptr) return false;
        planned.all_met = planned.all_met && met;
        planned.missed += met ? 0 : 1;
        planned.indices.push_back(p);
        planned.fits.push_back(std::move(fit));
        return true;
    }

    const LeasePlan& base_;
    std::span<const Promise> promises_;
};

}  // namespace

bool has_deadline(const JobState& job) {
    return job.spec->service != ServiceClass::best_effort && job.spec->deadline_s != kNever;
}

std::uint32_t claim_of(const JobState& job) {
    return job.running && !job.opportunistic ? job.spec->tenant : kNoTenant;
}

LeaseDemand demand_of(const Snapshot& snapshot, const Room& all, std::uint32_t j) {
    const JobState& job = *snapshot.jobs[j];
    LeaseDemand demand;
    demand.job = j;
    demand.tenant = job.spec->tenant;
    demand.gpus = job.running ? job.gpus : gpus_asked(snapshot, *job.spec);
    for (std::uint32_t type = 0; type < snapshot.gpu_types.size(); ++type) {
        const bool elsewhere = job.spec->gpu_type != kAnyGpuType && job.spec->gpu_type != type;
        // A job might wait forever for GPUs beyond its tenant's claim.
        const bool unclaimed = !job.running && all.claim_left(*job.spec, type) < demand.gpus;
        // A promise must not depend on a place on few nodes, which may not be free when the job starts again.
        const double spread = consolidation(*job.spec, demand.gpus, 1) * ideal_rate(*job.spec, type, demand.gpus);
        const double rate = std::min(spread, expected_rate(snapshot, job, type, demand.gpus));
        demand.rates.push_back(elsewhere || unclaimed ? 0 : rate);
    }
    demand.remaining_bytes = job.remaining_bytes;
    demand.restart_s = job.spec->restart_s;
    demand.started = job.first_started_s != kNever;
    demand.runs = job.running;
    if (job.running) demand.runs_on = job.gpu_type;
    if (holds_lease(job, snapshot.now_s)) demand.stays_on = job.gpu_type;
    if (job.running && job.started_s > job.first_started_s) {
        demand.starting_s = std::max(0.0, job.started_s + job.spec->restart_s - snapshot.now_s);
    }
    demand.preemptible = job.spec->preemptible;
    demand.deadline_s = job.spec->deadline_s;
    return demand;
}

std::vector<Promise> find_promises(const Snapshot& snapshot, bool soft_too) {
    std::vector<Promise> promises;
    const Room all(snapshot);
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        const JobState& job = *snapshot.jobs[j];
        if (!has_deadline(job) || is_unstoppable(job)) continue;
        const bool strict = job.spec->service == ServiceClass::strict_deadline;
        if (!strict && !soft_too && job.admitted_s == kNever) continue;
        Promise& promise = promises.emplace_back();
        promise.demand = demand_of(snapshot, all, j);
        const double rate = std::ranges::max(promise.demand.rates);
        promise.latest_start_s = rate > 0 ? job.spec->deadline_s - job.remaining_bytes / rate : -kNever;
        promise.strict = strict;
        promise.promised_before = job.admitted_s != kNever;
        promise.within_lease = holds_lease(job, snapshot.now_s);
        promise.holds_claim_of = claim_of(job);
    }
    std::ranges::sort(promises, {}, [](const Promise& promise) {
        return std::tuple(!promise.promised_before, !promise.promised_before && !promise.strict, promise.latest_start_s,
                          promise.demand.job);
    });
    return promises;
}

void add_promised_ends(const Snapshot& snapshot, std::vector<double>& ends_s) {
    constexpr double kSame_s = 1e-3;
    const double first_s = ends_s.front();
    const double last_s = ends_s.back();
    for (const JobState* const job : snapshot.jobs) {
        if (job->admitted_s == kNever) continue;
        for (const auto& [from_s, until_s] : job->promised.spans) {
            if (from_s > first_s && from_s < last_s) ends_s.push_back(from_s);
            if (until_s > first_s) ends_s.push_back(until_s);
        }
    }
    std::ranges::sort(ends_s);
    const auto same = [](double a, double b) { return b - a < kSame_s; };
    ends_s.erase(std::ranges::unique(ends_s, same).begin(), ends_s.end());
}

void admit_by_latest_start(const Snapshot& snapshot, LeasePlan& plan, std::vector<Promise>& promises) {
    const LeasePlan base = plan;
    const PromisePlanner planner(base, promises);
    std::vector<std::size_t> old;
    std::vector<std::size_t> hopeful;
    for (std::size_t p = 0; p < promises.size(); ++p) {
        Promise& promise = promises[p];
        promise.hopeless = !promise.within_lease && !base.fit(promise.demand).meets(promise.demand.deadline_s);
        if (promise.promised_before) {
            old.push_back(p);
        } else if (!promise.hopeless) {
            hopeful.push_back(p);
        }
    }
    PlannedPromises planned = planner.plan_in_order(old);
    bool by_order = planned.all_met;
    if (!by_order) {
        PlannedPromises kept = planner.plan_at_promised_times(snapshot, old);
        if (kept.missed <= planned.missed) planned = std::move(kept);
    }
    const auto in_order_with = [&](std::span<const std::size_t> more) {
        std::vector<std::size_t> indices = planned.indices;
        indices.insert(indices.end(), more.begin(), more.end());
        return planner.plan_in_order(std::move(indices));
    };
    std::size_t fits = 0;
    if (by_order && !hopeful.empty()) {
        PlannedPromises with_all = in_order_with(hopeful);
        if (with_all.all_met) {
            planned = std::move(with_all);
            hopeful.clear();
        }
    }
    for (const std::size_t p : hopeful) {
        fits += planned.indices.size() + 1;
        if (planned.all_met && fits <= kFitsMax) {
            PlannedPromises with = in_order_with(std::span(&p, 1));
            if (with.all_met) {
                planned = std::move(with);
                continue;
            }
        }
        planner.add_if_met(planned, p);
    }
    for (std::size_t i = 0; i < planned.indices.size(); ++i) {
        Promise& promise = promises[planned.indices[i]];
        promise.fit = std::move(planned.fits[i]);
        promise.met = promise.fit.meets(promise.demand.deadline_s);
    }
    for (std::size_t p = 0; p < promises.size(); ++p) {
        if (!promises[p].met) promises[p].fit = planner.fit_in(planned, p);
    }
    plan = std::move(planned.plan);
}

}  // namespace larder::scheduler
