#pragma once

// Codes a set of numbers below a bound in close to the fewest bytes that tell it from other sets of its size: 122 KiB
// for half of a million. A binary arithmetic coder (a range coder with 32 bits, as in LZMA's format, but with one fixed
// probability): each bit of the set's bitmap costs the logarithm of its share among all bits. Pure functions.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace larder::detail {

// Returns the coded form of the first `bit_count` bits, of which `ones` are set. Bit i is bit i mod 64 of word i / 64.
std::vector<std::byte> code_bits(std::span<const std::uint64_t> words, std::uint64_t bit_count, std::uint64_t ones);

// Returns the bits that code_bits coded. Any bytes give some bits; nullopt if not `ones` of them are set.
std::optional<std::vector<std::uint64_t>> decode_bits(std::span<const std::byte> coded, std::uint64_t bit_count,
                                                      std::uint64_t ones);

}  // namespace larder::detail
