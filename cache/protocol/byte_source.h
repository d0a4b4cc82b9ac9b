#pragma once

// Bytes that a parser reads piece by piece: an object of a remote, a file, a buffer. The parsers of formats take one,
// so that they serve the indexer over objects and the client over a block alike. A source belongs to one thread.

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"

namespace larder::protocol {

class ByteSource {
public:
    virtual ~ByteSource() = default;
    virtual std::uint64_t size_bytes() const = 0;
    // `bytes` bytes at `offset`, both within size_bytes(); valid until the next call.
    virtual Result<std::span<const std::byte>> read(std::uint64_t offset, std::size_t bytes) = 0;
};

}  // namespace larder::protocol
