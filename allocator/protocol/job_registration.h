#pragma once

// The declaration made when a job is registered: values that cannot be measured, or are not measured yet. A job can
// read without registration.

#include <cstdint>
#include <optional>
#include <string>

#include "allocator/protocol/unlimited.h"

namespace larder::allocator {

struct JobRegistration {
    std::string name;
    double weight = 1;
    double epochs = kUnlimited;                    // still to go at registration, the current one included
    std::optional<double> ideal_bytes_per_second;  // f*, used until it is measured
    double bandwidth_floor_bytes_per_second = 0;
    double bandwidth_cap_bytes_per_second = kUnlimited;
    // The uid that the job's loaders have on every node. Sessions of other users under this name are other jobs. Empty:
    // any user.
    std::optional<std::uint32_t> user;
};

}  // namespace larder::allocator
