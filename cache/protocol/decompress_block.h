#pragma once

// Decompresses the blocks of a dataset: of most formats they are zstd frames, of ArrayRecord groups of records.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/error.h"
#include "cache/protocol/decompressor.h"
#include "cache/protocol/manifest.h"

namespace larder::protocol {

// `bytes`: the block as it is at the remote. Returns exactly block.raw_bytes bytes, or an error.
Result<std::unique_ptr<std::byte[]>> decompress_block(const Manifest& manifest, const Block& block,
                                                      std::span<const std::byte> bytes, Decompressor& decompressor);

}  // namespace larder::protocol
