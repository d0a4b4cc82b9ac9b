#pragma once

// Sorts indices by their keys, and equal keys by index, so that the order does not depend on the algorithm.

#include <cstdint>
#include <span>
#include <vector>

namespace larder::allocator {

// Smallest key first. Keys are not NaN.
std::vector<std::uint32_t> ascending(std::span<const double> keys);
std::vector<std::uint32_t> ascending(std::span<const std::uint64_t> keys);
// Largest key first.
std::vector<std::uint32_t> descending(std::span<const double> keys);

}  // namespace larder::allocator
