#pragma once

// Decides how far ahead a loader requests blocks. Enough batches are in flight to cover 1.5 times the latency of a
// block, at the pace at which the training loop consumes batches. More are not requested, since blocks that wait in
// slots take memory that other batches could use. Pure arithmetic; the memory budget limits the result
// (loader/slot_slabs.h).

#include <cstdint>

namespace larder::detail {

// Batches to plan ahead, at least two. `latency_ns`: from a block's request to its arrival. `period_ns`: between two
// batches, without waits for data. Either is 0 if it is not measured yet: the least is planned then.
std::uint64_t prefetch_batches(std::int64_t latency_ns, std::int64_t period_ns, std::uint64_t batch_size);

}  // namespace larder::detail
