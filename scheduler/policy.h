#pragma once

// Who runs next. A policy looks at a Snapshot and says which jobs should run, the most important first, with how many
// GPUs of which type; it knows neither nodes nor processes. decide() (decide.h) turns that into starts and stops. One
// policy is one small class; to add one, write it under policies/ and name it in policies/make_policy.cc.
//
// A policy is pure over the snapshot: the same snapshot gives the same decision. It may keep what only makes it faster
// (an LP's last basis). One thread at a time.

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
    std::uint32_t gpu_type = kAnyGpuType;  // any: whichever has room, the job's fastest first; a running job stays
    bool opportunistic = false;            // on what nobody with a claim uses at present; may be stopped at any time
    std::optional<std::uint32_t> packed_with;  // index in Snapshot::jobs of one wanted before: on that one's GPUs
    double lease_s = 0;                        // it is promised to run so long; kept in JobState::lease_until_s
    bool promised = false;                     // it was promised its GPUs: others' priorities do not go before it
    bool moves = false;                        // runs, and is to run elsewhere if that puts it on fewer nodes
};

// A job whose deadline cannot be met.
struct Refused {
    std::uint32_t job = 0;  // index in Snapshot::jobs
    double end_s = kNever;  // when it would be through, by the earliest
};

// The times in which a promised job is to run; none where its promise could not be kept.
struct Promised {
    std::uint32_t job = 0;  // index in Snapshot::jobs
    PromisedTimes times;
};

struct Decision {
    // The most important first; decide() puts those of higher JobSpec::priority before, whatever the policy, and lets
    // those of tenants at their quota wait. A running job that is not among them is stopped, if it is preemptible.
    std::vector<Want> wants;
    // Whether the next ones are tried when there is no room for one.
    bool passes_over = true;
    // Or only those of its own tenant are not: every tenant has a queue.
    bool holds_up_tenant = false;
    // To be asked again by then, when nothing happens before; kNever: no need.
    double next_s = kNever;
    std::vector<std::uint32_t> admitted;  // their deadlines are promised from now on: JobState::admitted_s
    std::vector<Refused> refused;         // strict ones, which are not among the wants
    std::vector<Promised> promised;       // JobState::promised from now on; of others it stays what it was
};

// What an operator may choose of a policy; each uses its own part.
struct PolicyOptions {
    double round_s = 360;                   // of time-slicing policies: how long a decision stands
    std::vector<double> queue_gpu_s{3600};  // las: attained service at which a job goes down a queue
    double promote_after = 8;               // las: goes up again after waiting so many times what it ran
    std::uint32_t window_intervals = 24;    // astraea
    double interval_s = 3600;               // astraea
    double lease_s = 1200;                  // astraea, chronus
    double starve_s = 6 * 3600.0;           // astraea: waited so long without any service
    bool exact = false;                     // chronus: admission by integer program

    TimeWindow window() const { return {.interval_s = interval_s, .intervals = window_intervals}; }
};

class Policy {
public:
    virtual ~Policy() = default;
    virtual std::string_view name() const = 0;
    // Whether running jobs may be stopped for others.
    virtual bool preempts() const = 0;
    // Whether jobs that were stopped are back soon, so that their data had better stay cached meanwhile.
    virtual bool takes_turns() const { return preempts(); }
    // Whether it says itself how many GPUs an elastic job has. Of others decide() hides how far jobs have grown, and
    // lets them grow into what is left; those that stop nobody leave sizes as they are.
    virtual bool sizes_jobs() const { return !preempts(); }
    virtual Result<Decision> decide(const Snapshot& snapshot) = 0;
};

// By name ("fifo", "las", ...). not_found: there is none, with the names there are.
Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const PolicyOptions& options);
std::vector<std::string_view> policy_names();
// What plans are to pursue beside it where nobody says: fair shares of storage beside fair shares of GPUs, else the
// least remote traffic.
allocator::ObjectiveKind objective_of(std::string_view policy);

}  // namespace larder::scheduler
