#pragma once

// What is declared of a job when it is registered: what cannot be measured, or is not measured yet. A job that reads
// needs no registration.

#include <optional>
#include <string>

#include "allocator/state.h"

namespace larder::allocator {

struct JobSpec {
    std::string name;
    double weight = 1;
    double epochs = kUnlimited;                    // to go when it is registered, with the current one
    std::optional<double> ideal_bytes_per_second;  // f*, until it is measured
    double bandwidth_floor_bytes_per_second = 0;
    double bandwidth_cap_bytes_per_second = kUnlimited;
};

}  // namespace larder::allocator
