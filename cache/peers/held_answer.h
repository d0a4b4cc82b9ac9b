#pragma once

// What a node answers when a peer asks which blocks of a dataset it holds: a header, then a bit a block in the order of
// the manifest, the lowest bit of a byte first. Without bits: nothing has changed since the state the peer named. All
// integers are little-endian.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace larder::cache {

// A state of what a node holds; never the same for two states.
struct HeldState {
    std::uint64_t instance = 0;  // drawn anew when the daemon starts
    std::uint64_t changes = 0;

    bool operator==(const HeldState&) const = default;
    std::string text() const { return std::to_string(instance) + "-" + std::to_string(changes); }
};

struct HeldAnswer {
    HeldState state;
    std::uint64_t room_bytes = 0;                   // of its quota that is free
    std::optional<std::vector<std::uint8_t>> bits;  // nothing: unchanged
};

std::string encode_held(const HeldState& state, std::uint64_t room_bytes, std::uint32_t block_count,
                        std::span<const std::uint8_t> bits);
// Nothing: it is no such answer, or one about another number of blocks.
std::optional<HeldAnswer> decode_held(std::span<const std::byte> answer, std::uint32_t block_count);

}  // namespace larder::cache
