#pragma once

// The allocator's API as values, for the commands that take --allocator or $LARDER_ALLOCATOR.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tools/cli/context.h"

namespace larder::cli {

// invalid_argument: no allocator is named; unavailable: it does not answer.
Result<boost::json::value> call_allocator(const Context& context, std::string_view method, const std::string& target,
                                          const boost::json::value& body = nullptr);

// The body of a GET that is no JSON. Errors as above.
Result<std::string> get_from_allocator(const Context& context, const std::string& target);

// GETs an answer that goes on, as http_get_stream does; silence for so long breaks it. Errors as above.
Result<void> stream_from_allocator(const Context& context, const std::string& target, std::int64_t silence_ms,
                                   const std::function<bool(std::string_view part)>& take);

// A rate that may be missing from an answer: "-".
std::string rate_at(const boost::json::object& object, std::string_view key);
std::string bytes_at(const boost::json::object& object, std::string_view key);
// 0.345 as "34.5 %"
std::string part_at(const boost::json::object& object, std::string_view key);
// ["a","b"] as "a b"; more than three: "a b c +2"
std::string names_at(const boost::json::object& object, std::string_view key);

// The list of GET /v1/nodes, as a table of at most so many columns.
std::string nodes_text(const boost::json::array& nodes, std::size_t columns);

}  // namespace larder::cli
