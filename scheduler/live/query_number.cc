#include "scheduler/live/query_number.h"

#include <charconv>

namespace larder::scheduler {

Result<std::uint64_t> query_number(const HttpRequest& request, const std::string& key, std::uint64_t default_number,
                                   std::uint64_t least, std::uint64_t most) {
    const auto given = request.query.find(key);
    if (given == request.query.end()) return default_number;
    const std::string& text = given->second;
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool is_number = error == std::errc{} && end == text.data() + text.size();
    if (is_number && number >= least && number <= most) return number;
    std::string wanted = "a whole number";
    if (least > 0) wanted += " of at least " + std::to_string(least);
    if (most < std::numeric_limits<std::uint64_t>::max()) wanted += " up to " + std::to_string(most);
    return fail(ErrorCode::invalid_argument, "query: " + key + " is \"" + text + "\", but must be " + wanted);
}

}  // namespace larder::scheduler
