#include "tools/cli/when.h"

#include <ctime>
#include <string>

#include "base/units.h"

namespace larder::cli {

Result<double> parse_when(std::string_view text, double now_s) {
    if (text.starts_with('+')) {
        const auto duration_ns = parse_duration_ns(text.substr(1));
        if (duration_ns) return now_s + static_cast<double>(*duration_ns) * 1e-9;
    }
    std::string rest(text);
    const bool utc = rest.ends_with('Z');
    if (utc) rest.pop_back();
    for (const char* format : {"%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M"}) {
        std::tm parts{};
        parts.tm_isdst = -1;
        const char* end = ::strptime(rest.c_str(), format, &parts);
        if (end == nullptr || *end != '\0') continue;
        return static_cast<double>(utc ? ::timegm(&parts) : std::mktime(&parts));
    }
    return fail(ErrorCode::invalid_argument, "\"" + std::string(text) + "\" is not a time: expected " + kWhenForm);
}

std::string local_time(double unix_s) {
    const auto seconds = static_cast<std::time_t>(unix_s);
    std::tm parts{};
    ::localtime_r(&seconds, &parts);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
    return text;
}

}  // namespace larder::cli
