#pragma once

// Finds what keeps jobs below f* under the plan in force: the remote's bandwidth, or the network or the disk of a node
// that they run on or read from. Computed from what the plan predicts of all jobs, in time linear in the size of plan
// and state. Pure.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/plan.h"

namespace larder::allocator {

struct RateBound {
    enum class Kind : std::uint8_t { remote, network, disk };
    Kind kind = Kind::remote;
    std::string node;  // whose network or disk
};

// A rate of at least this part of f* counts as f*.
inline constexpr double kNearIdeal = 0.98;

// Returns the bound of each of the state's jobs: the remote if nothing else is known to be full. `plan` must be made
// from `state`.
std::vector<RateBound> rate_bounds(const ClusterState& state, const Plan& plan);
// Returns the bound of one job, by name.
RateBound rate_bound(const ClusterState& state, const Plan& plan, std::string_view job);

}  // namespace larder::allocator
