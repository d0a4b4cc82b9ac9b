#pragma once

// LitData's chunks whose samples are compressed in runs (compression_level="batch", which newer versions take where
// none is given). A run is a zstd frame, and becomes one compressed block, with its samples in what comes out of it:
//
//     "LDFZ01\0\0", version u16 = 1, flags u16, samples u32, samples of a frame u32, frames u32,
//     samples + 1 offsets u32 into all that is compressed here,
//     frames of { first sample u32, samples u32, offset in the file u64, bytes u32, bytes once decompressed u32 },
//     the frames
//
// Integers are little-endian. Source: Lightning-AI/litData (src/litdata/streaming/framed_zstd.py).

#include <cstdint>

#include "base/error.h"
#include "cache/dataset/index_in_parallel.h"
#include "cache/dataset/indexed_object.h"
#include "cache/object_source.h"

namespace larder::cache {

// `object` has its path, size and tag, and is given its blocks and samples. No payload is read.
Result<void> index_framed_chunk(ObjectReader& reader, std::uint64_t expected_samples, IndexedObject& object,
                                const ObjectProgress& progress);

}  // namespace larder::cache
