#pragma once

// Converts submissions and records to and from JSON, for the API and for the rows on record. Keys are
// named as the members of the structs; members without a value are left out.

#include <boost/json/object.hpp>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "scheduler/live/live_scheduler.h"

namespace larder::scheduler {

// Reads the object that a user sends. `where` prefixes errors.
Result<Submission> read_submission(const boost::json::object& object, std::string where);
// Returns what any reader may see: everything but the environment.
boost::json::object to_json(const JobRecord& job);
boost::json::object to_json(const Allotment& held);

// The rows on record have everything; times by GPU type are under the types' names. The readers throw on malformed
// rows.
boost::json::object row_json(const JobRecord& job, std::span<const std::string> gpu_types);
JobRecord job_of_row(const boost::json::object& row, std::span<const std::string> gpu_types);
boost::json::object row_json(const NodeInventory& node);
NodeInventory node_of_row(const boost::json::object& row);
boost::json::object row_json(const GpuTime& use);
GpuTime gpu_time_of_row(const boost::json::object& row);

}  // namespace larder::scheduler
