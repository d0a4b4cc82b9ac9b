#pragma once

// Plans soft deadlines, which are not promised. Jobs with the most value for their GPU time choose first, each the
// latest leases that keep the highest value still possible (JobSpec::values). A plan holds for one decision only, so it
// never stands in the way of a promise to a job that comes later.

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/policies/promises.h"

namespace larder::scheduler {

struct UrgentJob {
    std::uint32_t job = 0;  // index in Snapshot::jobs
    std::uint32_t gpu_type = kAnyGpuType;
};

struct GoalPlan {
    std::vector<UrgentJob> urgent;  // jobs that lose value unless they run now, the most value for GPU time first
    // True if a job has little time to spare, or cannot have the highest value still possible. Then GPUs go first to
    // jobs that have a value to lose.
    bool tight = false;
};

// Leaves out jobs whose promise is met. Takes the leases of planned jobs in `plan`.
GoalPlan plan_goals(const Snapshot& snapshot, std::span<const Promise> promises, LeasePlan& plan);

}  // namespace larder::scheduler
