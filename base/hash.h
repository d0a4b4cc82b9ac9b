#pragma once

// CRC32C (Castagnoli, by ISA-L with the hardware instruction) for integrity, and a 64-bit mixer for
// choosing blocks and permuting epochs. Both are fixed for ever: their values are on disk and in saved states. And a
// hash of names, made of the mixer, for orders that are the same on every machine.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

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

// Quick for the few bytes a name has, of which it takes eight at a time, on a little-endian machine.
inline std::uint64_t hash_name(std::string_view name) {
    std::uint64_t hash = name.size();
    std::uint64_t word = 0;
    for (; name.size() > sizeof word; name.remove_prefix(sizeof word)) {
        std::memcpy(&word, name.data(), sizeof word);
        hash = mix64(hash ^ word);
    }
    word = 0;
    std::memcpy(&word, name.data(), name.size());
    return mix64(hash ^ word);
}

}  // namespace larder
