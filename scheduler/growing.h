#pragma once

// Gives spare GPUs to elastic jobs, step by step, each time to the job that gains most per GPU. Gandiva does this
// itself (policies/gandiva.h); for other policies that preempt, decide() does it once all other jobs are placed.

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/snapshot.h"

namespace larder::scheduler {

// The part of a restart's declared time that a resize costs: the tasks that stay meet the new ones and go on from what
// was saved, but need not be begun again.
inline constexpr double kResizePart = 0.5;

struct Growing {
    std::uint32_t job = 0;  // index in Snapshot::jobs
    std::uint32_t gpu_type = 0;
    std::uint32_t gpus = 0;
};

// Raises `gpus` of the jobs and takes the GPUs from `left`, which is by type.
void raise_all(const Snapshot& snapshot, std::span<std::uint32_t> left, std::vector<Growing>& jobs);

// Like raise_all(), but a running job grows only if its gain until its end exceeds the cost of a restart, or of a
// resize if the job is resizable. A job that is being resized does not grow.
void grow(const Snapshot& snapshot, std::span<std::uint32_t> left, std::vector<Growing>& jobs);

// True if, within `horizon_s`, the higher rate gains more bytes than `restarts` restarts of the job lose.
bool gain_exceeds_restarts(double rate_before, double rate_after, double horizon_s, double restart_s, int restarts);

}  // namespace larder::scheduler
