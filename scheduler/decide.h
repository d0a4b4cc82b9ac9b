#pragma once

// From a policy's wishes to starts and stops: the one way in which the simulator and the daemon schedule. The wishes
// are gone through in their order while GPUs are left; running jobs among them stay where they are, the others find a
// place or wait; running jobs that were passed by are stopped, if they may be and if that helped anyone. Priorities
// and tenants' quotas hold here, under every policy, and so does what it means to have no claim
// (JobSpec::opportunistic): the policy decides on such jobs apart, with what the others leave, and any claim may take
// their GPUs. What is left at the end goes to elastic jobs, unless the policy sizes them itself (growing.h).

#include <string>
#include <vector>

#include "scheduler/placement/placer.h"
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
    std::vector<std::uint32_t> stops;  // preempted; carried out before the starts. Also in starts: with other GPUs.
    std::vector<Start> starts;
    // Run on, but what they hold may be taken from now on, or no more: to be kept in JobState::opportunistic.
    std::vector<std::uint32_t> demoted;
    std::vector<std::uint32_t> promoted;
    std::vector<std::pair<std::uint32_t, double>> leases;  // job, until (seconds)
    std::vector<std::uint32_t> admitted;                   // JobState::admitted_s is now
    std::vector<Refused> refused;
    std::vector<Promised> promised;  // JobState::promised from now on
    double next_s = kNever;          // decide again by then
};

// What a waiting job waits for, where the last decision left it.
enum class WaitsFor : std::uint8_t {
    nothing,     // it runs
    gpus,        // too few are free for it
    place,       // enough are free, but not where it may go, or not in one piece
    turn,        // others come first
    quota,       // its tenant has all it may have
    deadline,    // cannot be met: Actions::refused says by when it could end
    never_fits,  // it asks for more than there is
};

// Ids for the placer, by index in Snapshot::jobs.
struct DecideInput {
    const Snapshot& snapshot;
    std::span<const JobId> ids;
    // Nodes that hold the job's data, the most of it first; may be null.
    std::span<const std::uint32_t> (*near)(const void* context, std::uint32_t job) = nullptr;
    const void* context = nullptr;
};

// `placer` has every running job placed, and afterwards is as the actions leave things. An error is the policy's;
// then nothing has changed. `waits_for`, if given, is set for each job.
Result<Actions> decide(Policy& policy, Placer& placer, const DecideInput& input,
                       std::vector<WaitsFor>* waits_for = nullptr);

// What a start changes in the state of its job, but for JobState::packed_with, which points to where states are kept.
void note_start(JobState& job, const Start& start, double now_s);

// Claims, leases and promises, in the states of the jobs: `state_of(index in Snapshot::jobs)`.
template <typename StateOf>
void note_promises(const Actions& actions, double now_s, StateOf state_of) {
    for (const std::uint32_t at : actions.demoted) state_of(at).opportunistic = true;
    for (const std::uint32_t at : actions.promoted) state_of(at).opportunistic = false;
    for (const auto& [at, until_s] : actions.leases) state_of(at).lease_until_s = until_s;
    for (const std::uint32_t at : actions.admitted) state_of(at).admitted_s = now_s;
    for (const Promised& one : actions.promised) state_of(one.job).promised = one.times;
}

}  // namespace larder::scheduler
