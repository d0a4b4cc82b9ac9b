#include "allocator/protocol/node_plan.h"

#include <algorithm>

namespace larder::allocator {

double Lease::sum() const {
    double total = 0;
    for (const LeasedRate& rate : rates) total += rate.bytes_per_second;
    return total;
}

double Lease::in_force() const {
    return rates.empty() ? floor_bytes_per_second : sum();
}

double Lease::expired() const {
    return floor_bytes_per_second * static_cast<double>(std::max<std::size_t>(1, rates.size()));
}

}  // namespace larder::allocator
