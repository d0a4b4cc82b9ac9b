#pragma once

// Indexes many objects on a few threads, because a remote has high latency rather than low throughput. If several
// objects fail, returns the error of the one with the lowest index, so that equal input mostly gives equal errors.
// Blocks until all threads have ended. `work` is called from several threads at once, `progress` from one at a time.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <vector>

#include "cache/dataset/dataset_index.h"
#include "cache/dataset/index_memory.h"
#include "cache/dataset/indexed_object.h"

namespace larder::cache {

// Called from time to time with the number of bytes of the object done so far, and what its index takes (index_bytes).
// The work must end with the error that it returns: indexing was cancelled, or the dataset's index takes too much
// memory.
using ObjectProgress = std::function<Result<void>(std::uint64_t bytes, std::uint64_t index_bytes)>;
// A table of samples is read this far between two calls of ObjectProgress.
inline constexpr std::uint32_t kSamplesPerProgress = 65536;
using ObjectWork = std::function<Result<IndexedObject>(std::size_t index, const ObjectProgress& progress)>;

Result<std::vector<IndexedObject>> index_in_parallel(std::size_t count, const ObjectWork& work,
                                                     const IndexProgressCallback& progress, std::stop_token stop,
                                                     std::uint64_t bytes_max = index_bytes_max());

}  // namespace larder::cache
