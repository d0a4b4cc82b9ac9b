#pragma once

// The value of a number that has no limit. Messages leave out members that have it.

#include <limits>

namespace larder::allocator {

// A rate without a limit, and a number of epochs without an end.
inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

}  // namespace larder::allocator
