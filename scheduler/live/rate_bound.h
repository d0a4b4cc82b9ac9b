#pragma once

// Finds what keeps a job below f* under the plan in force: the remote's bandwidth, or the network or the disk of a node
// that it runs on or reads from. Computed from what the plan predicts of all jobs. Pure.

#include <string>
#include <string_view>

#include "allocator/plan.h"

namespace larder::scheduler {

struct RateBound {
    enum class Kind : std::uint8_t { remote, network, disk };
    Kind kind = Kind::remote;
    std::string node;  // whose network or disk
};

// Returns the remote if nothing else is known to be full. `plan` must be made from `state`.
RateBound rate_bound(const allocator::ClusterState& state, const allocator::Plan& plan, std::string_view job);

}  // namespace larder::scheduler
