#pragma once

// What the API's parts share: answers made of JSON, and the counters in them. Private to api*.cc.

#include <boost/json/object.hpp>

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/server/http.h"
#include "cache/shard/statistics.h"
#include "cache/store.h"

namespace larder::cache {

HttpResponse json_response(const boost::json::object& body, unsigned status = 200);
// 405, with what is allowed.
HttpResponse method_not_allowed(std::string_view allowed);
HttpResponse no_such_path();
// 202 {"task": ID}, or the error.
HttpResponse task_response(const Result<std::uint64_t>& task);
// 200 {}, or the error.
HttpResponse done_response(const Result<void>& done);

// The object in a request's body; an empty body is an empty object.
Result<boost::json::object> request_object(const HttpRequest& request);

boost::json::object counters_json(const BlockCounters& counters);
boost::json::object quota_json(const Quota& quota);
// {memory_bytes, disk_bytes}, both required.
Result<Quota> read_quota(const boost::json::object& object, std::string_view where);

}  // namespace larder::cache
