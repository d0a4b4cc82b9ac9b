#pragma once

// A cluster's months in seconds: jobs of a workload arrive, a policy decides, a cache system plans, and everybody reads
// at fluid rates until the next thing happens. Policies are called through decide(), Larder's plans made by
// allocator::assign: the code of the daemon. Deterministic: the same workload, options and seed give the same outcome,
// byte for byte.
//
// Things that happen: a job arrives, ends, comes to an epoch's end, is ready again after a restart; a store fills; a
// checkpoint is written or read; a node is lost or comes back; a policy's round is over.

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

struct SimulationOptions {
    PolicyOptions policy;
    CacheOptions cache;
    Storage storage;
    bool storage_aware = true;
    std::uint64_t seed = 1;
    double checkpoint_bytes_per_second = kNever;  // of all checkpoints together, beside the remote's bandwidth
    double checkpoint_interval_s = 1800;          // what a job loses when its node is lost is since its last one
    double node_lifetime_s = kNever;              // mean time of a node between failures
    double node_repair_s = 3600;
    // Of every node: what it reads of its cache, and what comes to it and, each way, leaves it over the network.
    double node_disk_bytes_per_second = kNever;
    double node_nic_bytes_per_second = kNever;
    // Plans as daemons make them (reported_plans.h), not at once whenever anything changes. With own caches.
    bool reported_plans = false;
    double report_lease_s = 10;                      // of the leases
    double report_floor_bytes_per_second = 1 << 20;  // of a job
    std::vector<double> report_ages_s;               // how long before 0 each node reported last; empty: spread evenly
    std::uint32_t samples = 500;                     // of the timeline
    // Called now and then, from the thread that runs; may be empty.
    std::function<void(const SimulationProgress&)> progress;
};

// Rejected: larger than the cluster, or than what its tenant has a claim to. Expired: a strict deadline passed that the
// policy never promised.
enum class JobEnd : std::uint8_t { finished, rejected, expired, unfinished };

struct JobOutcome {
    JobEnd end = JobEnd::unfinished;
    double start_s = kNever;
    double finish_s = kNever;
    double ran_s = 0;  // had GPUs
    double read_bytes = 0;
    double remote_bytes = 0;
    double useful_gpu_s = 0;  // GPU time, less what waited for data
    double allocated_gpu_s = 0;
    double equal_bytes = 0;  // what it would have read meanwhile under an equal share
    std::uint32_t preemptions = 0;
    std::uint32_t failures = 0;
};

// The cluster at a moment.
struct Sample {
    double at_s = 0;
    std::uint32_t running = 0;
    std::uint32_t waiting = 0;
    double gpus_allocated = 0;
    double gpus_useful = 0;
    double remote_bytes_per_second = 0;
    double cached_bytes_all = 0;
    std::vector<double> cached_bytes;  // of the sampled datasets, and of all others together
    std::vector<double> dataset_bytes_per_second;
};

struct Outcome {
    std::vector<JobOutcome> jobs;  // as in the workload
    std::vector<Sample> timeline;
    std::vector<std::uint32_t> sampled_datasets;  // all, or the largest
    bool others_sampled = false;
    double end_s = 0;
    std::uint64_t events = 0;
    std::uint64_t decisions = 0;
    std::uint64_t plans = 0;
    std::uint64_t node_failures = 0;
    // See tenant_shares.h: how much of its share each tenant had, window by window.
    std::vector<double> tenant_ratios;
};

// Errors: the policy's, the placer's or assign()'s own, with the time in the simulation; invalid_argument: of the
// options.
Result<Outcome> simulate(const Workload& workload, const GpuCluster& cluster, Policy& policy, Placer& placer,
                         const SimulationOptions& options);

}  // namespace larder::scheduler
