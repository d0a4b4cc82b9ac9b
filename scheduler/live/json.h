#pragma once

// Submissions and records as JSON: of the API, and of the rows they are kept in. Field by field the structs; what is
// not known is left out.

#include <boost/json/object.hpp>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "scheduler/live/live_scheduler.h"

namespace larder::scheduler {

// The object a user sends; `where` goes before errors.
Result<Submission> read_submission(const boost::json::object& object, std::string where);
// What anybody may see: all but its environment.
boost::json::object to_json(const JobRecord& job);
boost::json::object to_json(const Allotment& held);

// Everything, as it is put on record; times by GPU type under the types' names. The reading throws on what was never
// written so.
boost::json::object row_json(const JobRecord& job, std::span<const std::string> gpu_types);
JobRecord job_of_row(const boost::json::object& row, std::span<const std::string> gpu_types);
boost::json::object row_json(const GpuTime& use);
GpuTime gpu_time_of_row(const boost::json::object& row);

}  // namespace larder::scheduler
