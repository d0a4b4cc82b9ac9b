#include "base/server/config_values.h"

#include <cstdlib>

#include "base/server/http_target.h"
#include "base/server/logging.h"
#include "base/units.h"

namespace larder {
namespace {

using Kind = ConfigValue::Kind;

template <typename Number>
bool set_whole_number(Number& into, const ConfigValue& value, int base, Number least, Number most) {
    Number number{};
    const char* end = value.text.data() + value.text.size();
    const auto [stopped, error] = std::from_chars(value.text.data(), end, number, base);
    if (error != std::errc{} || stopped != end || number < least || number > most) return false;
    into = number;
    return true;
}

// True for text with a unit. A bare 0 may also be an integer.
bool has_unit(const ConfigValue& value) {
    return config_text_of(value) != nullptr || value.text == "0";
}

template <typename Into, typename Parsed>
bool set_parsed(Into& into, const ConfigValue& value, const Result<Parsed>& parsed) {
    if (!has_unit(value) || !parsed) return false;
    into = *parsed;
    return true;
}

}  // namespace

const std::string* config_text_of(const ConfigValue& value) {
    return value.kind == Kind::text || value.kind == Kind::flag ? &value.text : nullptr;
}

bool set_config_text(std::string& into, const ConfigValue& value) {
    if (config_text_of(value) == nullptr || value.text.empty()) return false;
    into = value.text;
    return true;
}

bool set_config_path(std::string& into, const ConfigValue& value) {
    if (!set_config_text(into, value)) return false;
    if (into.starts_with("~/")) {
        const char* home = std::getenv("HOME");
        if (home == nullptr) return false;
        into.replace(0, 1, home);
    }
    return true;
}

bool set_config_count_within(unsigned& into, const ConfigValue& value, unsigned least, unsigned most) {
    return (value.kind == Kind::integer || value.kind == Kind::flag) && set_whole_number(into, value, 10, least, most);
}

bool set_config_mode(unsigned& into, const ConfigValue& value) {
    return config_text_of(value) != nullptr && value.text.size() >= 3 && set_whole_number(into, value, 8, 0u, 0777u);
}

bool set_config_flag(bool& into, const ConfigValue& value) {
    if (value.kind == Kind::text || (value.text != "true" && value.text != "false")) return false;
    into = value.text == "true";
    return true;
}

bool set_config_log_level(std::string& into, const ConfigValue& value) {
    return parse_log_level(value.text).has_value() && set_config_text(into, value);
}

bool set_config_bytes(std::uint64_t& into, const ConfigValue& value) {
    return set_parsed(into, value, parse_bytes(value.text));
}

bool set_config_rate(double& into, const ConfigValue& value) {
    return set_parsed(into, value, parse_bytes_per_second(value.text));
}

bool set_config_rate_above_0(double& into, const ConfigValue& value) {
    return set_config_rate(into, value) && into > 0;
}

bool set_config_listen(std::string& into, const ConfigValue& value) {
    return parse_host_port(value.text).has_value() && set_config_text(into, value);
}

bool set_config_duration_within(std::int64_t& into_ns, const ConfigValue& value, std::int64_t least_ns,
                                std::int64_t most_ns) {
    const auto parsed = parse_duration_ns(value.text);
    return parsed && *parsed >= least_ns && *parsed <= most_ns && set_parsed(into_ns, value, parsed);
}

bool set_config_number_within(double& into, const ConfigValue& value, double least, double most) {
    if (value.kind == Kind::text) return false;
    double number = 0;
    const char* end = value.text.data() + value.text.size();
    const auto [stopped, error] = std::from_chars(value.text.data(), end, number);
    if (error != std::errc{} || stopped != end || !(number >= least && number <= most)) return false;
    into = number;
    return true;
}

}  // namespace larder
