#pragma once

// Sizes, rates and durations as people write them. Parsing is strict: a number, optional space, a unit. Sizes:
// B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024). Rates: a size with "/s", or bit, kbit, Mbit,
// Gbit (with or without "/s"). Durations: ns, us, ms, s, m, h. A bare 0 is accepted everywhere.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace larder {

Result<std::uint64_t> parse_bytes(std::string_view text);
Result<double> parse_bytes_per_second(std::string_view text);
Result<std::int64_t> parse_duration_ns(std::string_view text);

// "1.50 GiB", "812 B".
std::string format_bytes(std::uint64_t bytes);
// "125.00 MB/s" (powers of 1000, as networks count).
std::string format_bytes_per_second(double bytes_per_second);
// "2h 05m", "3m 20s", "4.2 s", "12 ms", "850 us".
std::string format_duration_ns(std::int64_t duration_ns);

}  // namespace larder
