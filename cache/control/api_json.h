#pragma once

// Shared by the parts of the API: answers about tasks, and counters, outages and quotas as JSON. Private to
// daemon_api*.cc and dataset_request.cc.

#include <boost/json/object.hpp>

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/server/http.h"
#include "base/server/json_http.h"
#include "cache/remote/http_outage.h"
#include "cache/shard/statistics.h"
#include "cache/store/store.h"

namespace larder::cache {

// 202 {"task": ID}, or the error.
HttpResponse task_response(const Result<std::uint64_t>& task);

boost::json::object counters_json(const BlockCounters& counters);
boost::json::object outage_json(const HttpOutage& outage, std::int64_t now_ns);
boost::json::object quota_json(const Quota& quota);
// {memory_bytes, disk_bytes}, both required.
Result<Quota> read_quota(const boost::json::object& object, std::string_view where);

}  // namespace larder::cache
