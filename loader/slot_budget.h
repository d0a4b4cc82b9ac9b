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

// Bytes that let two batches (one in use, one arriving) and the shuffle window be here at once. For few blocks this is
// the worst case; for many, the largest blocks do not all come together, so it is generous rather than certain.
std::uint64_t needed_slot_bytes(const protocol::Manifest& manifest, const SlotNeeds& needs);

// The slot memory to attach: the budget (0: chosen by what is needed), or less where the whole dataset needs less. An
// error names the figures when `needed_bytes` exceeds the budget.
Result<std::uint64_t> slot_bytes(const protocol::Manifest& manifest, std::uint64_t needed_bytes,
                                 std::uint64_t budget_bytes, const SlotNeeds& needs);

}  // namespace larder::detail
