#pragma once

// Indexes LitData chunks that compress their samples in runs (compression_level="batch", the default of newer
// versions). A run is a zstd frame and becomes one compressed block. The offsets of the block's samples count in the
// decompressed bytes. Layout of a chunk:
//
//     "LDFZ01\0\0", version u16 = 1, flags u16, samples u32, samples per frame u32, frames u32,
//     samples + 1 offsets u32 into the decompressed bytes of all frames,
//     for each frame { first sample u32, samples u32, offset in the file u64, bytes u32, decompressed bytes u32 },
//     the frames
//
// Integers are little-endian. Source: Lightning-AI/litData (src/litdata/streaming/framed_zstd.py).

#include <cstdint>

#include "base/error.h"
#include "cache/dataset/index_in_parallel.h"
#include "cache/dataset/indexed_object.h"
#include "cache/remote/object_source.h"

namespace larder::cache {

// Adds blocks and samples to `object`, whose path, size and tag are set. Reads no payload.
Result<void> index_framed_chunk(ObjectReader& reader, std::uint64_t expected_samples, IndexedObject& object,
                                const ObjectProgress& progress);

}  // namespace larder::cache
