#pragma once

// Turns a policy's wishes into starts and stops. The simulator and the daemon both schedule with decide(). It goes
// through the wishes in order while GPUs are left: a wanted running job stays where it is, any other wanted job finds a
// place or waits. A running job that was passed over is stopped if it may be stopped and if that helps another job.
// decide() enforces priorities and tenants' quotas under every policy. It also treats jobs without a claim
// (JobSpec::opportunistic) alike under every policy: the policy decides on them separately, with the GPUs that the
// other jobs leave, and any job with a claim may take their GPUs. GPUs left at the end go to elastic jobs, unless the
// policy sizes jobs itself (growing.h).

#include <functional>
#include <string>
#include <vector>

#include "scheduler/placement/placer.h"
#include "scheduler/places_by_plan.h"
#include "scheduler/policy.h"

namespace larder::scheduler {

struct Start {
    std::uint32_t job = 0;  // index in Snapshot::jobs
    std::uint32_t gpus = 0;
    std::uint32_t gpu_type = 0;
    bool opportunistic = false;
    Placement placement;
    std::optional<std::uint32_t> packed_with;
};

struct Actions {
    std::vector<std::uint32_t> stops;  // stopped before the starts; a job also in `starts` gets other GPUs
    std::vector<Start> starts;
    // These jobs run on, but lose (demoted) or get (promoted) the claim to their GPUs; see JobState::opportunistic.
    std::vector<std::uint32_t> demoted;
    std::vector<std::uint32_t> promoted;
    std::vector<std::pair<std::uint32_t, double>> leases;  // job, end of its lease in seconds
    std::vector<std::uint32_t> admitted;                   // jobs whose JobState::admitted_s becomes now
    std::vector<Refused> refused;
    std::vector<Promised> promised;  // new values of JobState::promised
    double next_s = kNever;          // decide again by this time
};

// The reason why a job waits, according to the last decision.
enum class WaitsFor : std::uint8_t {
    nothing,     // the job runs
    gpus,        // too few GPUs are free
    place,       // enough GPUs are free, but not where the job may run, or not in one piece
    turn,        // other jobs come first
    quota,       // the tenant is at its quota
    deadline,    // the deadline cannot be met; Actions::refused has the earliest possible end
    never_fits,  // the job asks for more GPUs than exist
};

// `ids` are the placer's ids of the jobs, by index in Snapshot::jobs.
struct DecideInput {
    const Snapshot& snapshot;
    std::span<const JobId> ids;
    // Returns the nodes that hold the job's data, the largest holder first. May be null.
    std::span<const std::uint32_t> (*near)(const void* context, std::uint32_t job) = nullptr;
    const void* context = nullptr;
    const GpuCluster* cluster = nullptr;  // the placer's; null: no job is resized
    // Returns what plans are made from. Called at most once, if a job is to be placed. Empty: places are compared by
    // fit and nearness alone.
    std::function<PlanInput()> plan_input;
};

// `placer` must have every running job placed; on success it reflects the actions. An error comes from the policy, and
// nothing has changed. `waits_for`, if given, is set for each job.
Result<Actions> decide(Policy& policy, Placer& placer, const DecideInput& input,
                       std::vector<WaitsFor>* waits_for = nullptr);

// Records a start in the job's state, except JobState::packed_with, which points into the caller's storage of states.
void note_start(JobState& job, const Start& start, double now_s);

// Records claims, leases and promises in the jobs' states. `state_of` takes an index in Snapshot::jobs.
template <typename StateOf>
void note_promises(const Actions& actions, double now_s, StateOf state_of) {
    for (const std::uint32_t at : actions.demoted) state_of(at).opportunistic = true;
    for (const std::uint32_t at : actions.promoted) state_of(at).opportunistic = false;
    for (const auto& [at, until_s] : actions.leases) state_of(at).lease_until_s = until_s;
    for (const std::uint32_t at : actions.admitted) state_of(at).admitted_s = now_s;
    for (const Promised& one : actions.promised) state_of(one.job).promised = one.times;
}

}  // namespace larder::scheduler
