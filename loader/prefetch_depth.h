#pragma once

// How far ahead a loader asks for blocks. Enough batches are under way to cover the latency of a block, and half of it
// more, at the pace at which the training loop consumes batches: no more, since what waits in slots is memory that
// other batches could use. Pure arithmetic; the memory budget limits what comes of it (loader/slot_slabs.h).

#include <cstdint>

namespace larder::detail {

// Batches to plan ahead, at least two. `latency_ns`: from asking for a block to having it; `period_ns`: between two
// batches, without waiting for data; 0 where nothing was measured yet.
std::uint64_t prefetch_batches(std::int64_t latency_ns, std::int64_t period_ns, std::uint64_t batch_size);

}  // namespace larder::detail
