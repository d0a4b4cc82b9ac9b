#pragma once

// Decides which jobs run next. A policy reads a Snapshot and returns the jobs that should run, the most important
// first, with how many GPUs of which type. It knows neither nodes nor processes; decide() (decide.h) turns its wishes
// into starts and stops. A policy is one small class; to add one, write it under policies/ and name it in
// policies/make_policy.cc.
//
// A policy is a pure function of the snapshot: the same snapshot gives the same decision. It may keep only state that
// makes it faster (an LP's last basis). Use it from one thread at a time.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "scheduler/snapshot.h"

namespace larder::allocator {
enum class ObjectiveKind : std::uint8_t;
}

namespace larder::scheduler {

// One job that should run.
struct Want {
    std::uint32_t job = 0;  // index in Snapshot::jobs
    std::uint32_t gpus = 0;
    std::uint32_t gpu_type = kAnyGpuType;      // any: the job's fastest type with room; a running job stays
    bool opportunistic = false;                // on GPUs that no job with a claim uses; may be stopped at any time
    std::optional<std::uint32_t> packed_with;  // index in Snapshot::jobs of an earlier wish, whose GPUs it shares
    double lease_s = 0;                        // promised time to run; kept in JobState::lease_until_s
    bool promised = false;                     // its GPUs were promised: it comes before any priority
    bool moves = false;                        // a running job that should move if that saves nodes
};

// A job whose deadline cannot be met.
struct Refused {
    std::uint32_t job = 0;  // index in Snapshot::jobs
    double end_s = kNever;  // the earliest possible end
};

// The times when a promised job is to run; empty if its promise could not be kept.
struct Promised {
    std::uint32_t job = 0;  // index in Snapshot::jobs
    PromisedTimes times;
};

struct Decision {
    // The wishes, the most important first. Under any policy decide() puts jobs of higher JobSpec::priority first, and
    // makes jobs of tenants at their quota wait. A preemptible running job that is not listed is stopped.
    std::vector<Want> wants;
    // True if later wishes are tried when one has no room.
    bool skips_blocked = true;
    // True if a wish without room holds up only the later wishes of its tenant: each tenant has its own queue.
    bool blocks_tenant = false;
    // The policy must be asked again by this time even if nothing happens; kNever: no need.
    double next_s = kNever;
    std::vector<std::uint32_t> admitted;  // jobs whose deadlines are promised from now on: JobState::admitted_s
    std::vector<Refused> refused;         // jobs with strict deadlines, not among the wants
    std::vector<Promised> promised;       // new values of JobState::promised; other jobs keep theirs
};

// The options of all policies; each policy uses its own.
struct PolicyOptions {
    double round_s = 360;                   // time-slicing policies: how long a decision stands
    std::vector<double> queue_gpu_s{3600};  // las: attained service at which a job goes down a queue
    double promote_after = 8;               // las: a job goes up again after waiting this many times its run time
    std::uint32_t window_intervals = 24;    // astraea
    double interval_s = 3600;               // astraea
    double lease_s = 1200;                  // astraea, chronus
    double starve_s = 6 * 3600.0;           // astraea: a wait without service after which a job goes first
    bool exact = false;                     // chronus: admission by integer program

    TimeWindow window() const { return {.interval_s = interval_s, .intervals = window_intervals}; }
};

class Policy {
public:
    virtual ~Policy() = default;
    virtual std::string_view name() const = 0;
    // True if running jobs may be stopped for others.
    virtual bool preempts() const = 0;
    // True if stopped jobs soon run again, so that their data should stay cached meanwhile.
    virtual bool takes_turns() const { return preempts(); }
    // True if the policy itself sizes elastic jobs. For other policies decide() hides how far jobs have grown, and lets
    // jobs grow into GPUs that are left. A policy that does not preempt leaves sizes as they are.
    virtual bool sizes_jobs() const { return !preempts(); }
    virtual Result<Decision> decide(const Snapshot& snapshot) = 0;
};

// Makes a policy by name ("fifo", "las", ...). invalid_argument: the name is unknown, and the message lists the known
// names; or an option is out of range.
Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const PolicyOptions& options);
std::vector<std::string_view> policy_names();
// Returns the default objective of the allocator's plans under the policy: fair shares of storage for policies with
// fair shares of GPUs, the most throughput for fifo, else the least remote traffic.
allocator::ObjectiveKind objective_of(std::string_view policy);

}  // namespace larder::scheduler
