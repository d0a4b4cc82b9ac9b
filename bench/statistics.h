#pragma once

#include <algorithm>
#include <vector>

namespace larder::bench {

// Of an even number of values, the upper of the two in the middle. Not of none.
inline double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

}  // namespace larder::bench
