#pragma once

// Bytes that a parser reads piece by piece: an object of a remote, a file, a buffer. Format parsers take a ByteSource,
// so that one parser serves the indexer over objects and the client over a block. A source belongs to one thread.

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"

namespace larder::protocol {

class ByteSource {
public:
    virtual ~ByteSource() = default;
    virtual std::uint64_t size_bytes() const = 0;
    // Reads `bytes` bytes at `offset`, a range within size_bytes(). The span is valid until the next call.
    virtual Result<std::span<const std::byte>> read(std::uint64_t offset, std::size_t bytes) = 0;
};

}  // namespace larder::protocol
