#pragma once

// The JSON of the lists that operators read, of events and of what-if questions. docs/openapi/allocator.yaml describes
// each field. Values that are unknown or unlimited are left out.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <deque>
#include <string_view>
#include <vector>

#include "allocator/service/events.h"
#include "allocator/service/view.h"
#include "allocator/service/whatif.h"
#include "base/error.h"

namespace larder::allocator {

boost::json::object nodes_json(const ClusterView& view);
boost::json::object datasets_json(const ClusterView& view);
boost::json::object jobs_json(const ClusterView& view);

// Returns the three lists in one object.
boost::json::object status_json(const ClusterView& view);

boost::json::object to_json(const Event& event);
boost::json::object to_json(const std::deque<RateSample>& samples);

Result<WhatIfChange> read_change(const boost::json::object& object, std::string_view where);
boost::json::object to_json(const Comparison& comparison);

}  // namespace larder::allocator
