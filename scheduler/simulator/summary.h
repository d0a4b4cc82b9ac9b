#pragma once

// The results of a simulation, in the figures by which schedulers are compared.

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "scheduler/simulator/simulation.h"

namespace larder::scheduler {

struct Quantiles {
    double mean = 0;
    double p50 = 0;
    double p90 = 0;
    double p99 = 0;
    double least = 0;
    double most = 0;
};

struct Summary {
    std::uint64_t jobs = 0;
    std::uint64_t measured = 0;  // jobs that count for completion times, queueing and fairness
    std::uint64_t finished = 0;
    std::uint64_t rejected = 0;
    std::uint64_t larger_than_cluster = 0;  // of the rejected; the others are larger than their tenant's claim
    std::uint64_t expired = 0;
    std::uint64_t unfinished = 0;
    double makespan_s = 0;  // from the first submission to the last end
    Quantiles jct_s;        // job completion time: end minus submission
    Quantiles queueing_s;   // the part of the completion time without GPUs
    // GPU time that jobs ask for at f* over that of the cluster, between the first and the last submission; 0 if all
    // come at once. Rejected jobs do not count.
    double offered_load = 0;
    double gpu_utilisation = 0;  // useful over allocated GPU time
    double gpu_allocation = 0;   // allocated over available GPU time until the last end
    Quantiles fairness;          // bytes that jobs read over those under equal shares, while they ran
    Quantiles tenant_fairness;   // GPU time of a tenant in a window over its share by the weight tree, at most 1
    double read_bytes = 0;
    double remote_bytes = 0;
    std::uint64_t deadlines = 0;
    std::uint64_t deadlines_missed = 0;
    std::uint64_t strict_deadlines = 0;  // of `deadlines`
    std::uint64_t strict_missed = 0;
    // Of the results of all jobs with deadlines, over the most possible; 0 if there are none.
    double deadline_value = 0;
    std::uint64_t preemptions = 0;
    std::uint64_t failures = 0;  // jobs stopped by lost nodes
};

// The jobs, in the order of submission, that count for times and fairness: all, or those of a period in which the
// cluster neither fills nor empties.
struct MeasuredJobs {
    std::size_t begin = 0;
    std::size_t end = std::numeric_limits<std::size_t>::max();
};

// The values of one figure over several seeds. `deviation` is the standard deviation of a sample; 0 of one value.
struct Spread {
    double mean = 0;
    double deviation = 0;
    double least = 0;
    double most = 0;
};

Quantiles quantiles(std::vector<double> values);
Spread spread(std::span<const double> values);
Summary summarise(const Workload& workload, const SimulationOutcome& outcome, std::uint32_t gpus,
                  MeasuredJobs measured = {});

}  // namespace larder::scheduler
