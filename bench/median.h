#pragma once

#include <algorithm>
#include <vector>

namespace larder::bench {

// Returns the median; the upper of the two middle values if the count is even. `values` must not be empty.
inline double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

}  // namespace larder::bench
