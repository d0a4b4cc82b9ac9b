#pragma once

// Decompresses zstd blocks (MDS and LitData shards, packed blocks) into heap memory of this process. Reuses one
// context; one thread at a time. The caller gives the decompressed size, which is also the bound: a frame that declares
// or yields another size is an error, so no input can make it write or allocate more. A size that the compressed bytes
// cannot hold is an error before anything is allocated.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/error.h"

struct ZSTD_DCtx_s;

namespace larder::protocol {

class Decompressor {
public:
    // Returns exactly `raw_bytes` bytes, or an error.
    Result<std::unique_ptr<std::byte[]>> run(std::span<const std::byte> compressed, std::uint32_t raw_bytes);

private:
    struct Free {
        void operator()(ZSTD_DCtx_s* context) const;
    };
    std::unique_ptr<ZSTD_DCtx_s, Free> context_;
};

}  // namespace larder::protocol
