#pragma once

// The kinds of value config keys take, put into a field. Each is false, with the field maybe half set, when the value
// is not of that kind; the words for what is allowed stand beside them.

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/server/config_text.h"

namespace larder {

inline constexpr std::string_view kConfigPath = "a path, in text";
inline constexpr std::string_view kConfigMode = "an octal mode such as \"0660\", in text";
inline constexpr std::string_view kConfigFlag = "true or false";
inline constexpr std::string_view kConfigLogLevel = "\"trace\", \"debug\", \"info\", \"warn\" or \"error\"";

// The value where it is text; null where it is a number or a list.
const std::string* config_text_of(const ConfigValue& value);

bool set_config_text(std::string& into, const ConfigValue& value);  // not empty
bool set_config_path(std::string& into, const ConfigValue& value);  // ~/ is the home directory
bool set_config_count(unsigned& into, const ConfigValue& value, unsigned least, unsigned most);
// "0640", always octal, always text: as a TOML integer 640 would be another number than it looks.
bool set_config_mode(unsigned& into, const ConfigValue& value);
bool set_config_flag(bool& into, const ConfigValue& value);
bool set_config_log_level(std::string& into, const ConfigValue& value);
// With their units, in text; a bare 0 may be an integer.
bool set_config_bytes(std::uint64_t& into, const ConfigValue& value);
bool set_config_rate(double& into, const ConfigValue& value);  // bytes per second
bool set_config_duration(std::int64_t& into_ns, const ConfigValue& value, std::int64_t least_ns, std::int64_t most_ns);
// A plain number, whole or not.
bool set_config_number(double& into, const ConfigValue& value, double least, double most);

}  // namespace larder
