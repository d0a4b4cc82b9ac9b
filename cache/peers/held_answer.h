#pragma once

// The answer of a node to a peer that asks which blocks of a dataset the node holds: a header, then one bit per block
// in the order of the manifest, the lowest bit of a byte first. An answer without bits means that nothing has changed
// since the state that the peer named. All integers are little-endian.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace larder::cache {

// Identifies a state of the blocks that a node holds. No two states have the same value.
struct HeldState {
    std::uint64_t instance = 0;  // drawn at random when the daemon starts
    std::uint64_t changes = 0;

    bool operator==(const HeldState&) const = default;
    std::string text() const { return std::to_string(instance) + "-" + std::to_string(changes); }
};

struct HeldAnswer {
    HeldState state;
    std::uint64_t room_bytes = 0;                   // free in the node's quota
    std::optional<std::vector<std::uint8_t>> bits;  // nothing: unchanged
};

std::size_t held_bytes_max(std::uint32_t block_count);
std::string encode_held(const HeldState& state, std::uint64_t room_bytes, std::uint32_t block_count,
                        std::span<const std::uint8_t> bits);
// Nothing if `answer` is malformed or is about another number of blocks.
std::optional<HeldAnswer> decode_held(std::span<const std::byte> answer, std::uint32_t block_count);

}  // namespace larder::cache
