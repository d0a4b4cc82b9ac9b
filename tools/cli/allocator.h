#pragma once

// Calls of the allocator's API, for commands that take --allocator or $LARDER_ALLOCATOR.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/units.h"
#include "tools/cli/context.h"
#include "tools/cli/table.h"

namespace larder::cli {

inline constexpr const char* kNameAnother = "name another with --allocator";

// Calls the API. Errors: invalid_argument if the daemon has no allocator and none is named; unavailable if the
// allocator, or the daemon that would name it, does not answer. Waits for some seconds if none of several allocators
// leads (AllocatorAccess::waits_for_leader). The message of the latter says how to choose another
// allocator (`other`).
Result<boost::json::value> call_allocator(const Context& context, std::string_view method, const std::string& target,
                                          const boost::json::value& body = nullptr,
                                          const std::string& other = kNameAnother);

// GETs a body that is not JSON. Errors as above.
Result<std::string> get_from_allocator(const Context& context, const std::string& target);

// GETs a streamed answer, as http_get_stream does; silence of `silence_ms` ends it with an error. Errors as above.
Result<void> stream_from_allocator(const Context& context, const std::string& target, std::int64_t silence_ms,
                                   const std::function<bool(std::string_view part)>& on_part);

// Returns a rate of an answer as text; "-" if it is missing.
std::string rate_at(const boost::json::object& object, std::string_view key);
std::string bytes_at(const boost::json::object& object, std::string_view key);
// Returns a size of an answer as text in the given family of units; "-" if it is missing.
std::string bytes_at(const boost::json::object& object, std::string_view key, UnitFamily family);
// Returns the family of units for the sizes of a dataset's row: that of its pin, else of its quota, else of its size.
UnitFamily unit_family_of_row(const boost::json::object& dataset);
// Returns a part of an answer as text: 0.345 as "34.5 %".
std::string part_at(const boost::json::object& object, std::string_view key);
// Returns names of an answer as text: ["a","b"] as "a b"; more than three: "a b c +2".
std::string names_at(const boost::json::object& object, std::string_view key);

// Returns the list of GET /v1/nodes as a table of at most `columns` columns.
std::string nodes_text(const boost::json::array& nodes, std::size_t columns, const RowChoice& choice = {});

}  // namespace larder::cli
