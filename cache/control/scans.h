#pragma once

// Warming and verifying datasets: scans of their blocks on their shards, each run by a task. Control thread only.

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "cache/control/datasets.h"
#include "cache/control/job_limits.h"
#include "cache/control/tasks.h"
#include "cache/shard/shard.h"

namespace larder::cache {

class Scans {
public:
    // The arguments must outlive the Scans and their tasks.
    Scans(const Clock& clock, Datasets& datasets, JobLimits& job_limits, Tasks& tasks)
        : clock_(clock), datasets_(datasets), job_limits_(job_limits), tasks_(tasks) {}

    // Starts a task and returns its id. A dataset has at most one task at a time.
    Result<std::uint64_t> start(const std::string& name, ScanKind kind);

private:
    const Clock& clock_;
    Datasets& datasets_;
    JobLimits& job_limits_;
    Tasks& tasks_;
};

}  // namespace larder::cache
