#pragma once

// The whole plan as JSON, for GET /v1/plan.

#include <boost/json/object.hpp>

#include <cstdint>

#include "allocator/cluster.h"

namespace larder::allocator {

// Writes the plan in force and its input: {plan, objective, remote..., nodes, datasets, jobs}.
boost::json::object plan_json(const Cluster& cluster, std::uint64_t number);

}  // namespace larder::allocator
