#pragma once

// Traces of blocks as OpenTelemetry knows them: the JSON form of OTLP's ExportTraceServiceRequest, written to a file or
// sent to a collector. A block is a trace: a root span from its taking to its delivery, and a child span for each step.

#include <boost/json/object.hpp>

#include <string>
#include <vector>

#include "base/error.h"

namespace larder::cli {

// Returns the requests with all blocks of `trace`, the daemon's answer to POST /v1/jobs/{name}/trace. A request has at
// most kOtlpBlocksPerRequest blocks, since collectors limit the size of a request. Ids are random.
std::vector<boost::json::object> otlp_requests(const boost::json::object& trace);
inline constexpr std::size_t kOtlpBlocksPerRequest = 500;

// Sends the requests to a collector if `to` begins with http:// or https://, to the path /v1/traces if the URL has no
// path; otherwise writes a file with a request per line.
Result<void> export_otlp(const std::vector<boost::json::object>& requests, const std::string& to);

}  // namespace larder::cli
