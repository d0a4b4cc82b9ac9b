#pragma once

// Sizes, rates and durations as people write them: a number, optional spaces, a unit. This is the only parser of them:
// command lines, configs and the Python package all come here. A bare 0 is accepted everywhere.
//
//   sizes      B, or k/K, M, G, T, P, E with B or nothing after it (powers of 1000), or with iB or i (powers of 1024)
//   rates      a size, with or without "/s"; or bit, kbit, Mbit, Gbit, Tbit, with or without "/s"
//   durations  ns, us, ms, s, m, h

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace larder {

Result<std::uint64_t> parse_bytes(std::string_view text);
Result<double> parse_bytes_per_second(std::string_view text);
Result<std::int64_t> parse_duration_ns(std::string_view text);

// Units in powers of 1000 (kB, MB, ...) or of 1024 (KiB, MiB, ...).
enum class UnitFamily : std::uint8_t { decimal, binary };

// Returns the family a size was most likely given in: decimal if the size is a round number of kB, MB, ... and not of
// KiB, MiB, ..., else binary. So "10 GB" is shown as "10.00 GB" and "10 GiB" as "10.00 GiB", however the bytes were
// passed on.
UnitFamily unit_family_of(std::uint64_t bytes);
// Returns the family for sizes that stand in one line: decimal if some size is 10 kB or more and each of those was most
// likely given so, else binary.
UnitFamily common_unit_family(std::span<const std::uint64_t> sizes_bytes);
// Formats a size: "1.50 GiB", "10.00 GB", "812 B".
std::string format_bytes(std::uint64_t bytes);
// Formats a size in the given family, so that it can stand beside another size.
std::string format_bytes(std::uint64_t bytes, UnitFamily family);
// Formats a size rounded up, for messages that ask for at least this size: the printed size is enough.
std::string format_bytes_at_least(std::uint64_t bytes, UnitFamily family);
// Formats a rate: "125.00 MB/s" (powers of 1000, as networks count); "no limit" from 1 PB/s on.
std::string format_bytes_per_second(double bytes_per_second);
// Formats a duration: "2h 05m", "3m 20s", "4.2 s", "12 ms", "850 us".
std::string format_duration_ns(std::int64_t duration_ns);

}  // namespace larder
