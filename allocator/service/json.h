#pragma once

// The JSON of reports, plans and registrations; the API's reference is the structs' own headers. Rates without a limit
// are left out. Reading is strict: an unknown key or a wrong type is an error that names it.

#include <boost/json/object.hpp>

#include <string_view>

#include "allocator/cluster.h"
#include "allocator/report.h"
#include "base/error.h"
#include "base/server/json_reader.h"

namespace larder::allocator {

boost::json::object to_json(const NodeReport& report);
Result<NodeReport> read_node_report(const boost::json::object& object, std::string_view where);

// Writes the lease's expiry as `lease_ms`, counted from the answer, because the clocks of nodes are not compared.
boost::json::object to_json(const NodePlan& plan, std::int64_t now_ns);
Result<NodePlan> read_node_plan(const boost::json::object& object, std::string_view where, std::int64_t now_ns);

// "max_min"; equal_shares is called "static".
std::string_view name(ObjectiveKind kind);
Result<ObjectiveKind> parse_objective(std::string_view text);

Result<JobSpec> read_job_spec(const boost::json::object& object, std::string_view where);
// Reads the keys of a JobSpec from an object that may have others.
JobSpec read_job_spec(JsonReader& reader);

// Writes the plan in force and its input: {plan, objective, remote..., nodes, datasets, jobs}.
boost::json::object plan_json(const Cluster& cluster, std::uint64_t number);

}  // namespace larder::allocator
