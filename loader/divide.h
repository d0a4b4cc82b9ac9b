#pragma once

// Division that rounds up, for counts of batches, shares and slabs. Pure arithmetic.

#include <cstdint>

namespace larder::detail {

constexpr std::uint64_t divide_rounding_up(std::uint64_t value, std::uint64_t divisor) {
    return value / divisor + (value % divisor != 0);
}

}  // namespace larder::detail
