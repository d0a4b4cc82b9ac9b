#include "base/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <span>

namespace larder {
namespace {

struct Unit {
    std::string_view name;
    double factor;
};

constexpr std::array<Unit, 6> kDurationUnits{
    {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}}};

// A number and its unit, split. The number has digits and at most one point: no sign, no exponent, no "nan".
struct Quantity {
    std::string_view digits;
    std::string_view unit;
};

std::optional<Quantity> split(std::string_view text) {
    constexpr std::string_view spaces = " \t";
    const std::size_t first = text.find_first_not_of(spaces);
    if (first == std::string_view::npos) return std::nullopt;
    text = text.substr(first, text.find_last_not_of(spaces) + 1 - first);
    const std::size_t number_end = std::min(text.find_first_not_of("0123456789."), text.size());
    const std::string_view digits = text.substr(0, number_end);
    const std::size_t point = digits.find('.');
    if (digits.empty() || digits.front() == '.' || digits.back() == '.') return std::nullopt;
    if (point != std::string_view::npos && digits.find('.', point + 1) != std::string_view::npos) return std::nullopt;
    std::string_view unit = text.substr(number_end);
    unit.remove_prefix(std::min(unit.find_first_not_of(spaces), unit.size()));
    return Quantity{digits, unit};
}

std::optional<double> factor_of(std::span<const Unit> units, std::string_view name) {
    for (const Unit& unit : units) {
        if (unit.name == name) return unit.factor;
    }
    return std::nullopt;
}

// Returns 1000 or 1024 raised to the power the prefix stands for; 1 without a prefix.
std::optional<double> factor_of_prefix(std::string_view prefix, double base) {
    constexpr std::string_view prefixes = "kMGTPE";
    if (prefix.empty()) return 1.0;
    const std::size_t power = prefix == "K" ? 0 : prefixes.find(prefix);
    if (power == std::string_view::npos) return std::nullopt;
    return std::pow(base, static_cast<double>(power + 1));
}

// Returns the factor of a unit of bytes: "B", "kB", "K", "MiB", "Gi".
std::optional<double> factor_of_bytes(std::string_view unit) {
    if (unit.empty()) return std::nullopt;
    if (unit.ends_with('B')) unit.remove_suffix(1);
    if (!unit.ends_with('i')) return factor_of_prefix(unit, 1000);
    unit.remove_suffix(1);
    return unit.empty() ? std::nullopt : factor_of_prefix(unit, 1024);
}

// Returns the bytes in a unit of bits: "bit", "kbit", "Gbit".
std::optional<double> factor_of_bits(std::string_view unit) {
    if (!unit.ends_with("bit")) return std::nullopt;
    unit.remove_suffix(3);
    const auto bits = factor_of_prefix(unit, 1000);
    return bits ? std::optional(*bits / 8) : std::nullopt;
}

std::optional<double> number_of(std::string_view digits) {
    double value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
    return value;
}

bool is_bare_zero(const Quantity& quantity) {
    return quantity.unit.empty() && quantity.digits == "0";
}

std::unexpected<Error> unit_error(std::string_view kind, std::string_view text, std::string_view allowed) {
    return fail(ErrorCode::invalid_argument,
                "\"" + std::string(text) + "\" is not a " + std::string(kind) + ": expected " + std::string(allowed));
}

// Returns digits * factor as an integer, exact if both are whole numbers.
std::optional<std::uint64_t> scaled(std::string_view digits, double factor) {
    constexpr std::uint64_t value_max = std::numeric_limits<std::uint64_t>::max();
    if (digits.find('.') == std::string_view::npos) {
        std::uint64_t whole = 0;
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), whole);
        if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
        const auto multiple = static_cast<std::uint64_t>(factor);
        if (whole > value_max / multiple) return std::nullopt;
        return whole * multiple;
    }
    const auto number = number_of(digits);
    if (!number || *number * factor >= 0x1p64) return std::nullopt;
    return static_cast<std::uint64_t>(std::round(*number * factor));
}

constexpr std::string_view kBytesAllowed =
    "a number and one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB (or k, M, G, T), such as \"8 MiB\"";
constexpr std::string_view kRateAllowed =
    "a size per second such as \"200 MB/s\", or a number and one of bit, kbit, Mbit, Gbit, such as \"1 Gbit\"";
constexpr std::string_view kDurationAllowed = "a number and one of ns, us, ms, s, m, h, such as \"30 s\"";

template <typename... Arguments>
std::string formatted(const char* format, Arguments... arguments) {
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, format, arguments...);
    return buffer;
}

}  // namespace

Result<std::uint64_t> parse_bytes(std::string_view text) {
    const auto quantity = split(text);
    if (!quantity) return unit_error("size", text, kBytesAllowed);
    if (is_bare_zero(*quantity)) return 0;
    const auto factor = factor_of_bytes(quantity->unit);
    if (!factor) return unit_error("size", text, kBytesAllowed);
    const auto bytes = scaled(quantity->digits, *factor);
    if (!bytes) return unit_error("size", text, "less than 16777216 TiB");
    return *bytes;
}

Result<double> parse_bytes_per_second(std::string_view text) {
    const auto quantity = split(text);
    if (!quantity) return unit_error("rate", text, kRateAllowed);
    if (is_bare_zero(*quantity)) return 0.0;
    std::string_view unit = quantity->unit;
    if (unit.ends_with("/s")) unit.remove_suffix(2);
    auto factor = factor_of_bits(unit);
    if (!factor) factor = factor_of_bytes(unit);
    const auto number = number_of(quantity->digits);
    if (!factor || !number) return unit_error("rate", text, kRateAllowed);
    if (*number * *factor >= 1e18) return unit_error("rate", text, "less than 1000000 TB/s");
    return *number * *factor;
}

Result<std::int64_t> parse_duration_ns(std::string_view text) {
    const auto quantity = split(text);
    if (!quantity) return unit_error("duration", text, kDurationAllowed);
    if (is_bare_zero(*quantity)) return 0;
    const auto factor = factor_of(kDurationUnits, quantity->unit);
    if (!factor) return unit_error("duration", text, kDurationAllowed);
    const auto duration_ns = scaled(quantity->digits, *factor);
    if (!duration_ns || *duration_ns > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return unit_error("duration", text, "less than 2562047 h");
    }
    return static_cast<std::int64_t>(*duration_ns);
}

namespace {

// A smaller size does not show in which family it was given.
constexpr std::uint64_t kLeastOfKnownFamily_bytes = 10'000;

}  // namespace

UnitFamily unit_family_of(std::uint64_t bytes) {
    if (bytes < kLeastOfKnownFamily_bytes) return UnitFamily::binary;
    std::uint64_t binary_unit = 1024;
    for (; bytes / binary_unit >= 1024; binary_unit *= 1024) {
    }
    if (bytes % (binary_unit / 4) == 0) return UnitFamily::binary;
    // A round size is a multiple of 0.01 of the unit it is shown in, and of 1 kB.
    std::uint64_t decimal_step = bytes < 1'000'000 ? 1'000 : 10'000;
    for (std::uint64_t rest = bytes / 1'000'000; rest >= 1000; rest /= 1000) decimal_step *= 1000;
    return bytes % decimal_step == 0 ? UnitFamily::decimal : UnitFamily::binary;
}

UnitFamily common_unit_family(std::span<const std::uint64_t> sizes_bytes) {
    UnitFamily family = UnitFamily::binary;
    for (const std::uint64_t bytes : sizes_bytes) {
        if (bytes < kLeastOfKnownFamily_bytes) continue;
        family = unit_family_of(bytes);
        if (family == UnitFamily::binary) break;
    }
    return family;
}

std::string format_bytes(std::uint64_t bytes) {
    return format_bytes(bytes, unit_family_of(bytes));
}

std::string format_bytes(std::uint64_t bytes, UnitFamily family) {
    constexpr std::array binary{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    constexpr std::array decimal{"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    const std::uint64_t base = family == UnitFamily::decimal ? 1000 : 1024;
    const auto& names = family == UnitFamily::decimal ? decimal : binary;
    if (bytes < base) return formatted("%llu B", static_cast<unsigned long long>(bytes));
    auto value = static_cast<double>(bytes);
    std::size_t unit = 0;
    // A value that would print as 1024.00 moves to the next unit.
    for (; value >= static_cast<double>(base) - 0.005 && unit + 1 < names.size(); ++unit) {
        value /= static_cast<double>(base);
    }
    return formatted("%.2f %s", value, names[unit]);
}

std::string format_bytes_at_least(std::uint64_t bytes, UnitFamily family) {
    std::uint64_t printed = bytes;
    for (std::uint64_t step = 1;; step *= 2) {
        std::string text = format_bytes(printed, family);
        if (const auto read = parse_bytes(text); !read || *read >= bytes) return text;
        printed = bytes + step;
    }
}

std::string format_bytes_per_second(double bytes_per_second) {
    constexpr std::array names{"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
    constexpr double no_limit = 1e15;  // the rate that stands for a remote without a limit
    if (bytes_per_second >= no_limit) return "no limit";
    if (!(bytes_per_second >= 999.5)) return formatted("%.0f B/s", bytes_per_second > 0 ? bytes_per_second : 0.0);
    std::size_t unit = 0;
    for (; bytes_per_second >= (unit == 0 ? 999.5 : 999.995) && unit + 1 < names.size(); ++unit) {
        bytes_per_second /= 1000;
    }
    return formatted("%.2f %s", bytes_per_second, names[unit]);
}

std::string format_duration_ns(std::int64_t duration_ns) {
    if (duration_ns < 0)
        return "-" + format_duration_ns(duration_ns == std::numeric_limits<std::int64_t>::min()
                                            ? std::numeric_limits<std::int64_t>::max()
                                            : -duration_ns);
    const auto count = static_cast<long long>(duration_ns);
    if (count < 1'000) return formatted("%lld ns", count);
    if (count < 1'000'000) return formatted("%lld us", count / 1'000);
    if (count < 1'000'000'000) return formatted("%lld ms", count / 1'000'000);
    if (count < 59'950'000'000) return formatted("%.1f s", static_cast<double>(count) / 1e9);
    const long long seconds = count / 1'000'000'000 + (count % 1'000'000'000 >= 500'000'000 ? 1 : 0);
    if (seconds < 3600) return formatted("%lldm %02llds", seconds / 60, seconds % 60);
    return formatted("%lldh %02lldm", seconds / 3600, seconds / 60 % 60);
}

}  // namespace larder
