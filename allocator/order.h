#pragma once

// Indices in the order of their keys, equal keys in the order of their indices: an order that does not depend on how it
// was made.

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
