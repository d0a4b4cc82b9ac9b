#pragma once

// An objective says what a plan is to achieve. The names here are the ones of the API, the config and command lines.
// assign.h says how each objective is reached.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace larder::allocator {

enum class ObjectiveKind : std::uint8_t {
    efficiency,    // the split that needs the least remote bandwidth with every job at f*; its largest sum of rates
    max_min,       // the largest possible smallest rate / (weight * equal share), then the next smallest
    throughput,    // the largest sum of rates
    utilisation,   // the largest sum of GPUs at work: weight * GPUs * rate / f*
    equal_shares,  // the baseline: each job gets an equal part of cache and bandwidth
    pinned,        // quotas and bandwidth as the operator's floors say; the rest of the bandwidth in equal parts
};

// Each objective with its name.
inline constexpr std::array<std::pair<ObjectiveKind, std::string_view>, 6> kObjectiveTexts{{
    {ObjectiveKind::efficiency, "efficiency"},
    {ObjectiveKind::max_min, "max-min"},
    {ObjectiveKind::throughput, "throughput"},
    {ObjectiveKind::utilisation, "utilisation"},
    {ObjectiveKind::equal_shares, "equal-shares"},
    {ObjectiveKind::pinned, "pinned"},
}};

// Returns for example "max-min".
std::string_view name(ObjectiveKind kind);

// Returns all names, with commas between them.
std::string objective_names();

// Error: invalid_argument, which lists the known names or gives the present name for a former one.
Result<ObjectiveKind> parse_objective(std::string_view text);

}  // namespace larder::allocator
