#pragma once

// Computes the slot memory that a loader requests from the daemon, and checks its memory budget. Pure arithmetic on
// the sizes in the manifest.

#include <cstdint>
#include <string>

#include "base/error.h"
#include "cache/protocol/manifest.h"

namespace larder::detail {

struct SlotNeeds {
    std::uint32_t batch_size = 1;
    std::uint32_t window_blocks = 1;      // blocks whose samples mix
    std::uint32_t interleaved_ranks = 1;  // ranks among which a block's samples are dealt
};

// The least budget: two batches (one in use, one arriving) and the shuffle window. For few blocks this is the worst
// case. For many, it assumes that the largest blocks do not all come together. A larger batch is fetched in parts,
// which are copied aside (BlockClient::make_room).
std::uint64_t needed_slot_bytes(const protocol::Manifest& manifest, const SlotNeeds& needs);

// Fails if a memory budget is more than the machine has. 0, the default, always passes.
Result<void> check_budget(std::uint64_t budget_bytes);

struct SlotPlan {
    std::uint64_t slot_bytes = 0;  // a multiple of slab_bytes, at least two slabs
    std::uint64_t slab_bytes = 0;  // whole pages
};

// The slot memory to attach: `budget_bytes` (0: chosen from the need), or less if the whole dataset needs less. A slab
// holds the largest batch if each block is one sample, else the largest block. So N batches that a caller holds occupy
// N slabs. Fails, with the figures, if the budget is less than the need.
Result<SlotPlan> plan_slots(const protocol::Manifest& manifest, const SlotNeeds& needs, std::uint64_t budget_bytes);

}  // namespace larder::detail
