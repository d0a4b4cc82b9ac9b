#pragma once

// Finds where a rising function reaches a bound.

#include <cmath>

namespace larder::allocator {

// A point of the function: x, and its value there.
struct FunctionPoint {
    double x = 0;
    double value = 0;
};

// Returns the largest x found between `from` and `to` with function(x) <= bound. `function` is continuous and never
// falls, and from.value <= bound < to.value. The result has a double's precision. Uses false position (the Illinois
// variant) with bisections in between.
template <typename Function>
double largest_within(FunctionPoint from, FunctionPoint to, double bound, const Function& function) {
    constexpr int kStepsMax = 200;
    constexpr double kPrecision = 1e-15;
    double low = from.x;
    double high = to.x;
    double below = from.value - bound;
    double above = to.value - bound;
    int same_side = 0;  // how often in a row the step ended below (-) or above (+) the bound
    for (int step = 0; step < kStepsMax && high - low > kPrecision * std::abs(high); ++step) {
        double middle = (low + high) / 2;
        if (step % 4 != 3 && std::isfinite(above)) {
            const double weight_below = same_side > 1 ? below / 2 : below;
            const double weight_above = same_side < -1 ? above / 2 : above;
            const double crossing = (low * weight_above - high * weight_below) / (weight_above - weight_below);
            if (crossing > low && crossing < high) middle = crossing;
        }
        const double value = function(middle) - bound;
        if (value <= 0) {
            low = middle;
            below = value;
            same_side = same_side < 0 ? same_side - 1 : -1;
            if (value >= -kPrecision * std::abs(bound)) break;
        } else {
            high = middle;
            above = value;
            same_side = same_side > 0 ? same_side + 1 : 1;
        }
    }
    return low;
}

}  // namespace larder::allocator
