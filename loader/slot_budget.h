#pragma once

// How much slot memory a loader asks the daemon for, and whether its memory budget is enough. Pure arithmetic over the
// manifest's size figures.

#include <cstdint>
#include <string>

#include "base/error.h"
#include "cache/protocol/manifest.h"

namespace larder::detail {

struct SlotNeeds {
    std::uint32_t batch_size = 1;
    std::uint32_t window_blocks = 1;      // blocks whose samples mix
    std::uint32_t interleaved_ranks = 1;  // among which a block's samples are dealt
};

// The least budget: two batches (one in use, one arriving) and the shuffle window. For few blocks this is the worst
// case; for many, the largest blocks do not all come together. A batch that is larger still is brought in parts, which
// are copied aside (BlockClient::make_room).
std::uint64_t needed_slot_bytes(const protocol::Manifest& manifest, const SlotNeeds& needs);

struct SlotPlan {
    std::uint64_t slot_bytes = 0;  // a multiple of slab_bytes, at least two slabs
    std::uint64_t slab_bytes = 0;  // whole pages
};

// The slot memory to attach: `budget_bytes` (0: chosen by the need), or less where the whole dataset needs less. A slab
// holds the largest batch where blocks are one sample each, else the largest block; so N batches that a caller holds
// occupy N slabs. Fails if the budget is less than the need, with the figures.
Result<SlotPlan> plan_slots(const protocol::Manifest& manifest, const SlotNeeds& needs, std::uint64_t budget_bytes);

}  // namespace larder::detail
