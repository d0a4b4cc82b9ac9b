#pragma once

#include <limits>

namespace larder::allocator {

// A rate without a limit, and a number of epochs without an end. Messages leave out members of this value.
inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

}  // namespace larder::allocator
