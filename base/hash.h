#pragma once

// CRC32C (Castagnoli, by ISA-L with the hardware instruction) for integrity, and a 64-bit mixer for
// choosing blocks and permuting epochs. Both are fixed for ever: their values are on disk and in saved states.

#include <cstddef>
#include <cstdint>
#include <span>

namespace larder {

// CRC32C of `bytes`, continuing from `seed` (the CRC of what came before; 0 at the start).
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0);

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit values with full avalanche.
constexpr std::uint64_t mix64(std::uint64_t value) {
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

}  // namespace larder
