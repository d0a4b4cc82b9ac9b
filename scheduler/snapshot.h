#pragma once

// Everything a policy may read, at one moment: the jobs, the GPUs, the tenants and the storage. A policy is a pure
// function of a snapshot. So the history that a policy needs (attained service, a tenant's use over a window) is kept
// here by the simulator or the daemon, not in the policy. A snapshot owns nothing, and its data does not change during
// a decision.

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/gpu_time.h"
#include "scheduler/job_spec.h"
#include "scheduler/pair_rates.h"

namespace larder::scheduler {

inline constexpr std::uint32_t kNoTenant = std::numeric_limits<std::uint32_t>::max();

// The times when a job has its GPUs, all of one type, by the plan behind its promise.
struct PromisedTimes {
    std::uint32_t gpu_type = kNoGpuType;
    std::vector<std::pair<double, double>> spans;  // (from, until), ascending

    bool operator==(const PromisedTimes&) const = default;
};

struct JobState {
    const JobSpec* spec = nullptr;
    double remaining_bytes = kNever;  // kNever: not known
    double unread_bytes = 0;          // of the current epoch
    bool running = false;
    // While the job runs.
    std::uint32_t gpus = 0;
    std::uint32_t gpu_type = 0;
    bool opportunistic = false;  // on GPUs that it has no claim to
    Placement placement;
    bool resizing = false;  // a resize is under way, or growth was refused lately: the job may shrink, but not grow
    double started_s = 0;
    double rate_bytes_per_second = 0;       // by the plan in force
    const JobState* packed_with = nullptr;  // the job whose GPUs it shares; null: none
    // Over the job's life.
    double waiting_since_s = 0;  // while it waits: time of its submission or last stop
    double first_started_s = kNever;
    double attained_gpu_s = 0;
    GpuTime gpu_time;  // the part of it within a policy's window
    double ran_s = 0;
    std::vector<double> ran_s_by_type;  // by GPU type
    // Like ran_s_by_type, but older seconds count less (age_weight()). Valid as of recent_run_at_s. Updated by
    // add_run().
    std::vector<double> recent_run_s_by_type;
    double recent_run_at_s = 0;
    double lease_until_s = 0;  // policies with leases: end of the promised time
    // The time at which its deadline was promised. The caller of decide() sets it to now for the jobs in
    // Actions::admitted.
    double admitted_s = kNever;
    PromisedTimes promised;  // the latest from Actions::promised
    std::uint32_t preemptions = 0;
    double time_share = 1;  // part of the time it runs if jobs take turns; set by note_time_share()
};

struct Tenant {
    std::string name;
    double weight = 1;
    std::uint32_t parent = kNoTenant;    // index of the tenant above it
    std::uint32_t gpu_quota = kAllGpus;  // most GPUs at a time; kAllGpus: no quota
    GpuTime gpu_time;                    // attained by its jobs in a policy's window
};

struct DatasetState {
    std::string name;
    double size_bytes = 0;
    double cached_bytes = 0;  // that one job can reach: those of the peer group, or node, that has most of them
};

struct Storage {
    double cache_bytes = 0;                // of the whole cluster
    double remote_bytes_per_second = 0;    // of the whole cluster, too
    double nic_bytes_per_second = kNever;  // sum over all nodes, in each direction
    bool own_caches = false;               // a node's cache serves only jobs on that node
};

struct GpuTypeState {
    std::string name;
    std::uint32_t gpus = 0;  // on usable nodes, and those that jobs still hold on others
};

// The fair policies weigh past time by age: age_weight() returns the weight of a second that lies `age_s` back. It
// halves every kHalfLifeS. The result is the same on every machine, unlike that of std::exp2.
inline constexpr double kHalfLifeS = 2 * 3600.0;
double age_weight(double age_s);
// Returns the recent_run_s() of a job that ran all of the last `seconds` seconds.
double full_recent_run_s(double seconds);

// A stretch of time in which jobs run, with its weights, which are the same for most of these jobs.
class RunTime {
public:
    RunTime(double from_s, double to_s, const TimeWindow& window = {})
        : stretch_(from_s, to_s, window),
          full_recent_run_s_(scheduler::full_recent_run_s(to_s - from_s)),
          faded_since_s_(to_s) {}

    const TimeStretch& stretch() const { return stretch_; }
    // Returns the recent_run_s(), at the end of the stretch, of a job that ran all the time.
    double full_recent_run_s() const { return full_recent_run_s_; }
    // Returns the weight that seconds have at the end of the stretch, if they were weighted as of `at_s` before.
    double fade_since(double at_s) {
        if (at_s != faded_since_s_) {
            faded_since_s_ = at_s;
            fade_ = age_weight(stretch_.to_s - at_s);
        }
        return fade_;
    }

private:
    TimeStretch stretch_;
    double full_recent_run_s_;
    double faded_since_s_;
    double fade_ = 1;
};

// Records that a job ran all of `time`, whose cached weights may change. Call it for each running job before it is
// stopped, resized or decided upon. Updates attained_gpu_s, gpu_time, ran_s, ran_s_by_type, recent_run_s_by_type and
// recent_run_at_s.
void add_run(JobState& job, RunTime& time);
inline void add_run(JobState& job, double from_s, double to_s, const TimeWindow& window = {}) {
    RunTime time(from_s, to_s, window);
    add_run(job, time);
}
// Returns the job's recent_run_s_by_type of a type, weighted as of now.
double recent_run_s(const JobState& job, std::uint32_t gpu_type, double now_s);
// Returns the part of the recent time since its first start that the job ran. Never 0.
double time_share(const JobState& job, double now_s);
// Updates JobState::time_share if it has changed by more than a quarter: cache quotas depend on it, and a single turn
// must not move cache. Call it for all jobs before a decision.
void note_time_share(JobState& job, double now_s);
// True if the job ran before and waits to run again.
inline bool waits_for_turn(const JobState& job) {
    return !job.running && job.first_started_s != kNever;
}
// True if the job is within its lease. Leases end a millisecond early, so that a lease up to a boundary has expired
// there.
bool holds_lease(const JobState& job, double now_s);

struct Snapshot {
    double now_s = 0;
    std::span<const GpuTypeState> gpu_types;
    // Submitted and unfinished jobs that run or wait only for GPUs, in the order of submission.
    std::span<const JobState* const> jobs;
    std::span<const Tenant> tenants;
    std::span<const DatasetState> datasets;
    // GPUs that each tenant has a claim to, by tenant, then type; kAllGpus: all GPUs. Empty: every tenant has a
    // claim to all. Set by decide() from the placer.
    std::span<const std::uint32_t> claims = {};
    Storage storage;
    const PairRates* pair_rates = nullptr;  // measured rates of jobs that share GPUs; null: none
    bool storage_aware = true;              // false: policies use f* as the rate, like schedulers unaware of storage

    std::uint32_t gpus() const;
};

// Returns the expected rate of a job with `gpus` GPUs of a type, in bytes/s: f = min(f*, b / (1 - h)). If the job runs
// with these GPUs now, the plan in force gives the rate. If not, the job is assumed to get an equal share (by GPUs) of
// cache and bandwidth. The rate is f* if the snapshot is not storage-aware or the job reads no dataset.
double expected_rate(const Snapshot& snapshot, const JobState& job, std::uint32_t gpu_type, std::uint32_t gpus);
// Like expected_rate(), but with none of the job's data near: its equal share of the nodes' networks also limits the
// rate, and so does that of the remote's bandwidth if a node cannot use other nodes' caches.
double expected_rate_far(const Snapshot& snapshot, const JobState& job, std::uint32_t gpu_type, std::uint32_t gpus);
// Returns the expected rate with the GPUs that the job has, or asks for on its fastest type.
double expected_rate(const Snapshot& snapshot, const JobState& job);
// Returns the time to the job's end at that rate; kNever if its work is unknown.
double expected_remaining_s(const Snapshot& snapshot, const JobState& job);
// Returns what expected_remaining_s() would return for the job if it waited.
double remaining_if_waiting_s(const Snapshot& snapshot, const JobState& job);
// Returns the job's fastest type among those that it may run on and that have enough GPUs; kNoGpuType: none.
std::uint32_t fastest_type(const Snapshot& snapshot, const JobState& job);

}  // namespace larder::scheduler
