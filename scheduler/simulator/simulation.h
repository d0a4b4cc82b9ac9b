#pragma once

// Simulates months of a cluster in seconds: the jobs of a workload arrive, a policy decides, a cache system plans, and
// all jobs read at fluid rates until the next event. Policies are called through decide() and Larder's plans are made
// by allocator::assign, the same code as in the daemon. Deterministic: the same workload, options and seed give the
// same outcome, byte for byte.
//
// Events: a job arrives, ends, ends an epoch, or is ready after a restart; a store fills; a checkpoint is written or
// read; a node is lost or comes back; a policy's round ends.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/placement/placer.h"
#include "scheduler/policy.h"
#include "scheduler/simulator/cache_system.h"
#include "scheduler/simulator/workload.h"

namespace larder::scheduler {

struct SimulationProgress {
    double now_s = 0;
    std::uint64_t events = 0;
    std::uint64_t jobs_done = 0;
    std::uint64_t jobs = 0;
};

// A loss of one node at a known time.
struct NodeLoss {
    std::uint32_t node = 0;
    double at_s = 0;
};

struct SimulationOptions {
    PolicyOptions policy;
    CacheOptions cache;
    Storage storage;
    bool storage_aware = true;
    bool places_by_plan = true;  // compare places by the plan (places_by_plan.h), if plans depend on them
    std::uint64_t seed = 1;
    // Plans and policies are told f* times a factor for each job, drawn by seed from 1 - error to 1 + error. Below 1.
    double rate_error = 0;
    double checkpoint_bytes_per_second = kNever;  // of all checkpoints; not part of the remote's bandwidth
    // Instead: each checkpoint in flight has an equal share of the remote's bandwidth, as a job has, and what jobs
    // leave.
    bool checkpoints_share_remote = false;
    double checkpoint_interval_s = 1800;  // a job whose node is lost repeats the work since its last checkpoint
    double node_lifetime_s = kNever;      // mean time between failures of a node
    double node_repair_s = 3600;
    std::vector<NodeLoss> node_losses;  // these nodes never come back; beside the failures that are drawn
    // Limits of each node: reads of its cache, and network traffic in each direction.
    double node_disk_bytes_per_second = kNever;
    double node_nic_bytes_per_second = kNever;
    // Makes plans from reports, as the daemons do (reported_plans.h), not at once at every change. Needs cache
    // uniform+joint.
    bool reported_plans = false;
    double report_lease_s = 10;                      // length of the leases
    double report_floor_bytes_per_second = 1 << 20;  // floor of each job
    std::vector<double> report_ages_s;               // seconds before 0 of each node's last report; empty: even spread
    std::uint32_t samples = 500;                     // in the timeline
    // Called now and then, on the thread that simulates; may be empty.
    std::function<void(const SimulationProgress&)> progress;
};

// Rejected: the job is larger than the cluster, or than its tenant's claim. Expired: its strict deadline passed, and
// the policy had not promised it.
enum class JobEnd : std::uint8_t { finished, rejected, expired, unfinished };

struct JobOutcome {
    JobEnd end = JobEnd::unfinished;
    double start_s = kNever;
    double finish_s = kNever;
    double ran_s = 0;  // time with GPUs
    double read_bytes = 0;
    double remote_bytes = 0;
    double useful_gpu_s = 0;  // GPU time, less the time spent waiting for data
    double allocated_gpu_s = 0;
    double equal_bytes = 0;  // what it would have read in the same time under an equal share
    std::uint32_t preemptions = 0;
    std::uint32_t failures = 0;
    bool larger_than_cluster = false;  // of a rejected job; if false, it is larger than its tenant's claim
};

// The state of the cluster at one time.
struct TimelineSample {
    double at_s = 0;
    std::uint32_t running = 0;
    std::uint32_t waiting = 0;
    double gpus_allocated = 0;
    double gpus_useful = 0;
    double remote_bytes_per_second = 0;
    double cached_bytes_all = 0;
    std::vector<double> cached_bytes;  // of each sampled dataset, and of all others together
    std::vector<double> dataset_bytes_per_second;
};

struct SimulationOutcome {
    std::vector<JobOutcome> jobs;  // in the workload's order
    std::vector<TimelineSample> timeline;
    std::vector<std::uint32_t> sampled_datasets;  // all datasets, or the largest
    bool others_sampled = false;
    double end_s = 0;
    std::uint64_t events = 0;
    std::uint64_t decisions = 0;
    std::uint64_t plans = 0;
    std::uint64_t node_failures = 0;
    // The part of its share that each tenant had, window by window. See tenant_shares.h.
    std::vector<double> tenant_ratios;
};

// Errors are those of the policy, the placer or assign(), with the simulated time. invalid_argument: bad options.
Result<SimulationOutcome> simulate(const Workload& workload, const GpuCluster& cluster, Policy& policy, Placer& placer,
                                   const SimulationOptions& options);

}  // namespace larder::scheduler
