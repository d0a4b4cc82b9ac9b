#pragma once

// Random numbers that are the same on every machine: SplitMix64 (Steele, Lea, Flood 2014) over a counter.

#include <cmath>
#include <cstdint>

#include "base/hash.h"

namespace larder::scheduler {

class Random {
public:
    explicit Random(std::uint64_t seed) : state_(mix64(seed)) {}

    std::uint64_t next() { return mix64(state_ += 0x9e3779b97f4a7c15U); }
    // In [0, 1).
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
    // In [0, below).
    std::uint64_t below(std::uint64_t below) {
        return static_cast<std::uint64_t>(uniform() * static_cast<double>(below));
    }
    // Exponentially distributed, rounded to the millisecond: the last bit of logarithms differs between machines.
    double exponential_s(double mean_s) { return std::round(-std::log1p(-uniform()) * mean_s * 1e3) / 1e3; }

private:
    std::uint64_t state_;
};

}  // namespace larder::scheduler
