#pragma once

// Setters for the kinds of value that config keys take. Each stores the value in a variable and returns false if the
// value is not allowed; the variable may then be half set. The constants below say in words what is allowed. Templates
// take the least and the most allowed value, so that a rule can name the setter together with its limits.

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/server/config_text.h"

namespace larder {

inline constexpr std::string_view kConfigPath = "a path, in text";
inline constexpr std::string_view kConfigMode = "an octal mode such as \"0660\", in text";
inline constexpr std::string_view kConfigFlag = "true or false";
inline constexpr std::string_view kConfigLogLevel = "\"trace\", \"debug\", \"info\", \"warn\" or \"error\"";

// Returns the text of a value, or null if the value is a number or a list.
const std::string* config_text_of(const ConfigValue& value);

bool set_config_text(std::string& into, const ConfigValue& value);  // not empty
bool set_config_path(std::string& into, const ConfigValue& value);  // ~/ is the home directory
bool set_config_count_within(unsigned& into, const ConfigValue& value, unsigned least, unsigned most);
template <unsigned kLeast, unsigned kMost>
bool set_config_count(unsigned& into, const ConfigValue& value) {
    return set_config_count_within(into, value, kLeast, kMost);
}
// Sets a file mode such as "0640": always octal and always text, because the TOML integer 640 would be another number.
bool set_config_mode(unsigned& into, const ConfigValue& value);
bool set_config_flag(bool& into, const ConfigValue& value);
bool set_config_log_level(std::string& into, const ConfigValue& value);
// Sizes, rates and durations are text with a unit; a bare 0 may be an integer.
bool set_config_bytes(std::uint64_t& into, const ConfigValue& value);
template <std::uint64_t kLeast_bytes, std::uint64_t kMost_bytes>
bool set_config_bytes_within(std::uint64_t& into, const ConfigValue& value) {
    return set_config_bytes(into, value) && into >= kLeast_bytes && into <= kMost_bytes;
}
bool set_config_rate(double& into, const ConfigValue& value);  // bytes per second
bool set_config_rate_above_0(double& into, const ConfigValue& value);
bool set_config_duration_within(std::int64_t& into_ns, const ConfigValue& value, std::int64_t least_ns,
                                std::int64_t most_ns);
template <std::int64_t kLeast_ns, std::int64_t kMost_ns>
bool set_config_duration(std::int64_t& into_ns, const ConfigValue& value) {
    return set_config_duration_within(into_ns, value, kLeast_ns, kMost_ns);
}
// A plain number, whole or not.
bool set_config_number_within(double& into, const ConfigValue& value, double least, double most);
template <int kLeast, int kMost>
bool set_config_number(double& into, const ConfigValue& value) {
    return set_config_number_within(into, value, kLeast, kMost);
}
bool set_config_listen(std::string& into, const ConfigValue& value);  // HOST:PORT

// Sets an optional variable with the setter of its value.
template <auto Setter, typename T>
bool set_config_optional(std::optional<T>& into, const ConfigValue& value) {
    return Setter(into.emplace(), value);
}

}  // namespace larder
