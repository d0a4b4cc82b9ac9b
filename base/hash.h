#pragma once

// CRC32C (Castagnoli, by ISA-L with the hardware instruction) for integrity, and a 64-bit mixer for choosing blocks and
// permuting epochs. Both are fixed for ever: their values are on disk and in saved states. A hash of names, built on
// the mixer, gives orders that are the same on every machine.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace larder {

// Returns the CRC32C of `bytes`, continuing from `seed` (the CRC of the preceding bytes; 0 at the start).
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0);

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit values with full avalanche.
constexpr std::uint64_t mix64(std::uint64_t value) {
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

// Loads up to eight bytes as the low bytes of a little-endian word. Overlapping loads replace a memcpy of variable
// length, which would be a function call.
inline std::uint64_t low_bytes(const char* bytes, std::size_t count) {
    const auto load = [bytes]<typename Word>(std::size_t offset, Word word) {
        std::memcpy(&word, bytes + offset, sizeof word);
        return std::uint64_t{word} << 8 * offset;
    };
    if (count == 8) return load(0, std::uint64_t{});
    if (count >= 4) return load(0, std::uint32_t{}) | load(count - 4, std::uint32_t{});
    if (count == 0) return 0;
    return load(0, std::uint8_t{}) | load(count / 2, std::uint8_t{}) | load(count - 1, std::uint8_t{});
}

// Hashes a name eight bytes at a time: fast for short names.
inline std::uint64_t hash_name(std::string_view name) {
    const char* bytes = name.data();
    std::size_t left = name.size();
    std::uint64_t hash = left;
    for (; left > 8; bytes += 8, left -= 8) hash = mix64(hash ^ low_bytes(bytes, 8));
    return mix64(hash ^ low_bytes(bytes, left));
}

}  // namespace larder
