#pragma once

// All a policy may look at: the jobs that are there, the GPUs, the tenants and the storage, at one moment. A policy is
// a pure function of it, so what a policy needs of the past (service attained, shares of a tenant over a window) is
// kept here by whoever drives it, the simulator or the daemon, and not in the policy. Nothing here is owned; all of it
// holds still during a decision.

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/gpu_time.h"
#include "scheduler/job.h"

namespace larder::scheduler {

inline constexpr std::uint32_t kNoTenant = std::numeric_limits<std::uint32_t>::max();

// Times in which a job has its GPUs, all on one type, by the plan that its promise rests on.
struct PromisedTimes {
    std::uint32_t gpu_type = kAnyGpuType;
    std::vector<std::pair<double, double>> spans;  // from, until; they rise

    bool operator==(const PromisedTimes&) const = default;
};

struct JobState {
    const JobSpec* spec = nullptr;
    double remaining_bytes = kNever;  // kNever: not known
    double unread_bytes = 0;          // of the current epoch
    bool running = false;
    // While it runs.
    std::uint32_t gpus = 0;
    std::uint32_t gpu_type = 0;
    bool opportunistic = false;  // on GPUs that it has no claim to
    Placement placement;
    double started_s = 0;
    double rate_bytes_per_second = 0;       // what the plan in force gives it
    const JobState* packed_with = nullptr;  // shares its GPUs
    // Over its life.
    double waiting_since_s = 0;  // while it waits: since it was submitted, or last stopped
    double first_started_s = kNever;
    double attained_gpu_s = 0;
    GpuTime gpu_time;  // of that, what fell into a policy's window
    double ran_s = 0;
    std::vector<double> ran_s_by_type;  // by GPU type
    // ran_s_by_type, but each second counts less the older it is (faded()); as of lately_at_s. Kept by add_run().
    std::vector<double> lately_s_by_type;
    double lately_at_s = 0;
    double lease_until_s = 0;  // of policies with leases: it was promised its GPUs so long
    // When its deadline was promised: whoever drives sets it to now for those in Actions::admitted.
    double admitted_s = kNever;
    PromisedTimes promised;  // of the last decision: Actions::promised
    std::uint32_t preemptions = 0;
    double time_share = 1;  // where jobs take turns: kept by note_time_share()
};

struct Tenant {
    std::string name;
    double weight = 1;
    std::uint32_t parent = kNoTenant;       // index; of a hierarchy
    std::uint32_t gpu_quota = kAnyGpuType;  // at most so many at a time; kAnyGpuType: no quota
    GpuTime gpu_time;                       // that its jobs attained in a policy's window
};

struct DatasetState {
    std::string name;
    double size_bytes = 0;
    double cached_bytes = 0;
};

struct Storage {
    double cache_bytes = 0;                // of the whole cluster
    double remote_bytes_per_second = 0;    // likewise
    double nic_bytes_per_second = kNever;  // all nodes' networks, each way
    bool own_caches = false;               // what a node has cached serves only the jobs that run there
};

struct GpuTypeState {
    std::string name;
    std::uint32_t gpus = 0;  // usable
};

// What is left of a second's weight at that age, as the fair policies see the past: half each so often. The same on
// every machine, which std::exp2 is not.
inline constexpr double kHalfLifeS = 2 * 3600.0;
double faded(double age_s);
// What a job has by lately_s() that ran all of the last so many seconds.
double faded_sum_s(double seconds);

// A running job ran on until `to_s`, all the time since `from_s`: to be told of each before it is stopped, resized or
// decided upon. Sets attained_gpu_s, gpu_time, ran_s, ran_s_by_type and lately_s_by_type.
void add_run(JobState& job, double from_s, double to_s, const TimeWindow& window = {});
// Of lately_s_by_type, as of now.
double lately_s(const JobState& job, std::uint32_t gpu_type, double now_s);
// The part of the time since its first start that it ran, of late: what its turns come to. Never 0.
double time_share(const JobState& job, double now_s);
// Sets JobState::time_share where it has become another by a quarter: quotas go by it, and what a single turn adds or
// takes away must not move cache. To be told of all jobs before a decision.
void note_time_share(JobState& job, double now_s);
// Has run before, and waits to run again.
inline bool waits_for_turn(const JobState& job) {
    return !job.running && job.first_started_s != kNever;
}
// Whether it is within its lease. Leases end a millisecond early, so that one up to a boundary is over at it.
bool holds_lease(const JobState& job, double now_s);

struct Snapshot {
    double now_s = 0;
    std::span<const GpuTypeState> gpu_types;
    // Submitted, not finished, nothing left to wait for but GPUs; in the order of submission.
    std::span<const JobState* const> jobs;
    std::span<const Tenant> tenants;
    std::span<const DatasetState> datasets;
    // GPUs that each tenant has a claim to, by tenant, then type; kAnyGpuType: to all there are. Empty: all tenants
    // have. Set by decide(), from the placer.
    std::span<const std::uint32_t> claims = {};
    Storage storage;
    bool storage_aware = true;  // false: policies take f* for the rate, as schedulers that know no storage do

    std::uint32_t gpus() const;
};

// The rate a job can be expected to make with so many GPUs of a type: f = min(f*, b / (1 - h)) with what the plan in
// force gives it where it runs just so, with an equal share (by GPUs) of cache and bandwidth where it does not. f* when
// the snapshot is not storage-aware, or the job reads no dataset.
double expected_rate(const Snapshot& snapshot, const JobState& job, std::uint32_t gpu_type, std::uint32_t gpus);
// The same with none of its data near: its equal share of the nodes' networks bounds it, too, and of the remote's
// bandwidth, where other nodes' caches are no use.
double expected_rate_far(const Snapshot& snapshot, const JobState& job, std::uint32_t gpu_type, std::uint32_t gpus);
// With the GPUs it has, or asks for on its fastest type.
double expected_rate(const Snapshot& snapshot, const JobState& job);
// To its end at that rate; kNever when its work is not known.
double expected_remaining_s(const Snapshot& snapshot, const JobState& job);
// The type that the job is fastest on, of those it may run on that have enough GPUs; kAnyGpuType: there is none.
std::uint32_t fastest_type(const Snapshot& snapshot, const JobState& job);

}  // namespace larder::scheduler
