#pragma once

// An objective says what a plan is to achieve. The names here are the ones of the API, the config and command lines.
// assign.h says how each objective is reached.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace larder::allocator {

enum class ObjectiveKind : std::uint8_t {
    efficiency,    // the least remote bandwidth with every job at f*; if that does not fit, the most total throughput
    max_min,       // the largest possible smallest rate / (weight * equal share), then the next smallest
    throughput,    // the largest sum of rates
    utilisation,   // the largest sum of GPUs at work: weight * GPUs * rate / f*
    equal_shares,  // the baseline: each job gets an equal part of cache and bandwidth
    pinned,        // quotas and bandwidth as the operator's floors say; the rest of the bandwidth in equal parts
};

// Returns for example "max-min".
std::string_view name(ObjectiveKind kind);
// All names, with commas between them.
std::string objective_names();
// Error: invalid_argument, which lists the known names or gives the present name for a former one.
Result<ObjectiveKind> parse_objective(std::string_view text);

}  // namespace larder::allocator
