#pragma once

// GPUs to spare for elastic jobs: one after the other to whoever gains most by one more, of those on that type.

#include <cstdint>
#include <vector>

#include "scheduler/policies/wants.h"

namespace larder::scheduler {

struct Growing {
    std::uint32_t job = 0;  // index in Snapshot::jobs
    std::uint32_t gpu_type = 0;
    std::uint32_t gpus = 0;
};

// Raises `gpus` of the jobs, and takes them from the room. A running job changes only if what it gains until its end is
// more than starting again costs.
void grow(const Snapshot& snapshot, Room& room, std::vector<Growing>& jobs);

}  // namespace larder::scheduler
