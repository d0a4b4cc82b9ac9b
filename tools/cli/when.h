#pragma once

// Times as people write them on a command line.

#include <string>
#include <string_view>

#include "base/error.h"

namespace larder::cli {

inline constexpr const char* kWhenForm = "\"+2h\", or local time as \"2026-12-24 18:00\"; with Z at its end, UTC";

// Returns seconds since 1970. `now_s` is the current time, for times that begin with +.
Result<double> parse_when(std::string_view text, double now_s);

// Formats seconds since 1970 as local time: "2026-12-24 18:00:00".
std::string local_time(double unix_s);

}  // namespace larder::cli
