#pragma once

// GPUs to spare for elastic jobs: one after the other to whoever gains most by one more, of those on that type. Under
// Gandiva by the policy itself (policies/gandiva.h), under the other policies that stop jobs by decide(), once
// everybody else has been placed.

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/snapshot.h"

namespace larder::scheduler {

struct Growing {
    std::uint32_t job = 0;  // index in Snapshot::jobs
    std::uint32_t gpu_type = 0;
    std::uint32_t gpus = 0;
};

// Raises `gpus` of the jobs, and takes them from `left`, by type.
void raise_all(const Snapshot& snapshot, std::span<std::uint32_t> left, std::vector<Growing>& jobs);

// The same, but a running job changes only if what it gains until its end is more than starting again costs.
void grow(const Snapshot& snapshot, std::span<std::uint32_t> left, std::vector<Growing>& jobs);

// Whether so many GPUs pay within `horizon_s`, when the job is started again `restarts` times for it.
bool growing_pays(double rate_before, double rate_after, double horizon_s, double restart_s, int restarts);

}  // namespace larder::scheduler
