#pragma once

// Whole numbers in the queries of requests.

#include <cstdint>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/server/http_message.h"

namespace larder::scheduler {

// Returns the number at `key` of the request's query; `default_number` if the query lacks it.
// invalid_argument: it is no whole number from `least` to `most`.
Result<std::uint64_t> query_number(const HttpRequest& request, const std::string& key, std::uint64_t default_number,
                                   std::uint64_t least = 0,
                                   std::uint64_t most = std::numeric_limits<std::uint64_t>::max());

}  // namespace larder::scheduler
