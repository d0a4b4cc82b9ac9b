#pragma once

// The digest of a block: the first 128 bits of the SHA-256 of its bytes. Blocks that come from peers are checked
// against it, because a peer that lies can make other bytes with the same CRC32C.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace larder::cache {

struct BlockDigest {
    std::array<std::uint8_t, 16> bytes{};  // all zero: not known

    bool is_known() const { return bytes != std::array<std::uint8_t, 16>{}; }
    bool operator==(const BlockDigest&) const = default;
};

BlockDigest digest_of(std::span<const std::byte> block);

}  // namespace larder::cache
