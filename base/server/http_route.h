#pragma once

// Matches a request's path against a pattern such as "/v1/datasets/{name}/quota", and refuses unknown query keys, for
// the route tables of both HTTP APIs. Pure functions; any thread.

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/server/http_message.h"

namespace larder {

// Returns true if the path has the pattern's segments. A segment in braces matches any text that is not empty; `names`
// is set to these texts, in order, if the whole path matches.
bool match_route(std::string_view pattern, const std::vector<std::string>& path, std::vector<std::string>& names);
// The same for patterns with at most one segment in braces. `name` stays as it is if the pattern has none.
bool match_route(std::string_view pattern, const std::vector<std::string>& path, std::string& name);

// Fails with invalid_argument if the request has a query key that is not among `known_keys`, which are separated by
// spaces.
Result<void> check_query_keys(std::string_view known_keys, const HttpRequest& request);

}  // namespace larder
