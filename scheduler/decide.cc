#include "scheduler/decide.h"

#include <algorithm>
#include <exception>

#include "base/assert.h"
#include "scheduler/decision_round.h"

namespace larder::scheduler {
namespace {

Result<void> check(const Policy& policy, const Snapshot& snapshot, const Decision& decision) {
    std::vector<bool> seen(snapshot.jobs.size());
    for (const Want& want : decision.wants) {
        const auto refuse = [&](const std::string& why) {
            return fail(ErrorCode::internal, "policy " + std::string(policy.name()) + ": " + why);
        };
        if (want.job >= snapshot.jobs.size()) return refuse("it wants an unknown job");
        const JobSpec& spec = *snapshot.jobs[want.job]->spec;
        if (seen[want.job]) return refuse("it wants job \"" + spec.name + "\" twice");
        if (want.gpus < spec.gpus_min || want.gpus > spec.gpus_max) {
            return refuse("it wants job \"" + spec.name + "\" with " + std::to_string(want.gpus) + " GPUs");
        }
        if (want.packed_with && (*want.packed_with >= seen.size() || !seen[*want.packed_with])) {
            return refuse("it packs job \"" + spec.name + "\" with a job that is not among its earlier wants");
        }
        seen[want.job] = true;
    }
    for (const Refused& refused : decision.refused) {
        if (refused.job >= seen.size() || seen[refused.job]) {
            return fail(ErrorCode::internal,
                        "policy " + std::string(policy.name()) + " refuses a job that it wants, or an unknown one");
        }
    }
    return {};
}

// A policy's own failure must not take the daemon down.
Result<Decision> call_policy(Policy& policy, const Snapshot& snapshot) {
    try {
        return policy.decide(snapshot);
    } catch (const std::exception& thrown) {
        return fail(ErrorCode::internal, "policy " + std::string(policy.name()) + ": " + thrown.what());
    } catch (...) {
        return fail(ErrorCode::internal,
                    "policy " + std::string(policy.name()) + ": it threw something that is not an exception");
    }
}

Result<Decision> ask(Policy& policy, const Snapshot& snapshot) {
    auto decision = call_policy(policy, snapshot);
    if (!decision) return decision;
    if (auto valid = check(policy, snapshot, *decision); !valid) return std::unexpected(valid.error());
    return decision;
}

// A subset of a snapshot's jobs, the only ones that a policy is to see.
struct Part {
    std::vector<const JobState*> jobs;
    std::vector<std::uint32_t> indices;  // index of each job in the snapshot

    void add(const Snapshot& snapshot, std::uint32_t j) {
        jobs.push_back(snapshot.jobs[j]);
        indices.push_back(j);
    }

    Result<Decision> ask(Policy& policy, const Snapshot& snapshot, std::span<const GpuTypeState> gpu_types) const {
        Snapshot seen = snapshot;
        seen.jobs = jobs;
        seen.gpu_types = gpu_types;
        auto decision = scheduler::ask(policy, seen);
        if (!decision) return decision;
        for (Want& want : decision->wants) {
            want.job = indices[want.job];
            if (want.packed_with) want.packed_with = indices[*want.packed_with];
        }
        for (std::uint32_t& admitted : decision->admitted) admitted = indices[admitted];
        for (Refused& refused : decision->refused) refused.job = indices[refused.job];
        for (Promised& promised : decision->promised) promised.job = indices[promised.job];
        return decision;
    }
};

// A snapshot in which each grown job has only as many GPUs as it asks for, so that policies count the others as free.
class StatedSizes {
public:
    explicit StatedSizes(const Snapshot& snapshot) : seen_(snapshot) {
        std::size_t grown = 0;
        for (const JobState* const job : snapshot.jobs) grown += has_grown(*job) ? 1 : 0;
        if (grown == 0) return;
        shrunk_.reserve(grown);
        for (const JobState* const job : snapshot.jobs) {
            jobs_.push_back(job);
            if (!has_grown(*job)) continue;
            shrunk_.push_back(*job);
            shrunk_.back().gpus = job->spec->gpus;
            jobs_.back() = &shrunk_.back();
        }
        seen_.jobs = jobs_;
    }
    StatedSizes(const StatedSizes&) = delete;
    StatedSizes& operator=(const StatedSizes&) = delete;

    const Snapshot& snapshot() const { return seen_; }

private:
    static bool has_grown(const JobState& job) {
        return job.running && job.gpus > job.spec->gpus && job.spec->preemptible && job.packed_with == nullptr;
    }

    std::vector<JobState> shrunk_;
    std::vector<const JobState*> jobs_;
    Snapshot seen_;
};

// Returns the tenants' claims, as in Snapshot::claims. Empty: every tenant has a claim to all GPUs.
std::vector<std::uint32_t> claims_of(const Placer& placer, const Snapshot& snapshot) {
    std::vector<std::uint32_t> claims;
    bool any = false;
    for (std::uint32_t tenant = 0; tenant < snapshot.tenants.size(); ++tenant) {
        for (std::uint32_t type = 0; type < snapshot.gpu_types.size(); ++type) {
            claims.push_back(placer.owned_gpus(tenant, type));
            any = any || claims.back() != kAllGpus;
        }
    }
    if (!any) claims.clear();
    return claims;
}

// Jobs without a claim must not affect jobs with one. So the policy first decides on the jobs with a claim as if they
// were alone, then on the others with the GPUs that are left.
Result<void> choose_in_turn(Policy& policy, const Snapshot& snapshot, std::vector<Decision>& decisions,
                            DecisionRound& round) {
    Part claiming, others;
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        (snapshot.jobs[j]->spec->opportunistic ? others : claiming).add(snapshot, j);
    }
    auto first = claiming.ask(policy, snapshot, snapshot.gpu_types);
    if (!first) return std::unexpected(first.error());
    decisions.push_back(std::move(*first));
    round.choose(decisions.back());

    std::vector<GpuTypeState> left(snapshot.gpu_types.begin(), snapshot.gpu_types.end());
    for (std::uint32_t type = 0; type < left.size(); ++type) left[type].gpus = round.left(type);
    Snapshot unclaimed = snapshot;
    unclaimed.claims = {};
    auto second = others.ask(policy, unclaimed, left);
    if (!second) return std::unexpected(second.error());
    for (Want& want : second->wants) want.opportunistic = true;
    decisions.push_back(std::move(*second));
    round.choose(decisions.back());
    return {};
}

}  // namespace

Result<Actions> decide(Policy& policy, Placer& placer, const DecideInput& input, std::vector<WaitsFor>* waits_for) {
    LARDER_ASSERT(input.ids.size() == input.snapshot.jobs.size());
    std::optional<StatedSizes> stated_sizes;
    if (!policy.sizes_jobs()) stated_sizes.emplace(input.snapshot);
    const std::vector<std::uint32_t> claims = claims_of(placer, input.snapshot);
    Snapshot snapshot = stated_sizes ? stated_sizes->snapshot() : input.snapshot;
    snapshot.claims = claims;
    DecisionRound round(input, placer, policy, claims);
    std::vector<Decision> decisions;
    decisions.reserve(2);  // `round` keeps references to the elements
    const bool all_claim =
        std::ranges::none_of(snapshot.jobs, [](const JobState* job) { return job->spec->opportunistic; });
    if (all_claim) {
        auto decision = ask(policy, snapshot);
        if (!decision) return std::unexpected(decision.error());
        decisions.push_back(std::move(*decision));
        round.choose(decisions.back());
    } else if (auto chosen = choose_in_turn(policy, snapshot, decisions, round); !chosen) {
        return std::unexpected(chosen.error());
    }
    Actions actions;
    round.carry_out(actions);
    if (waits_for != nullptr) {
        waits_for->resize(snapshot.jobs.size());
        for (std::uint32_t j = 0; j < waits_for->size(); ++j) (*waits_for)[j] = round.waits_for(j);
    }
    return actions;
}

void note_start(JobState& job, const Start& start, double now_s) {
    job.running = true;
    job.gpus = start.gpus;
    job.gpu_type = start.gpu_type;
    job.opportunistic = start.opportunistic;
    job.placement = start.placement;
    job.started_s = now_s;
    job.first_started_s = std::min(job.first_started_s, now_s);
}

}  // namespace larder::scheduler
