#include "base/server/http_route.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace larder {

bool match_route(std::string_view pattern, const std::vector<std::string>& path, std::vector<std::string>& names) {
    if (pattern == "/") pattern = {};  // the path has no segment
    std::vector<std::string> found;
    for (const std::string& segment : path) {
        if (pattern.empty()) return false;
        pattern.remove_prefix(1);  // the slash
        const std::string_view wanted = pattern.substr(0, pattern.find('/'));
        pattern.remove_prefix(wanted.size());
        if (wanted.starts_with('{') && !segment.empty()) {
            found.push_back(segment);
        } else if (wanted != segment) {
            return false;
        }
    }
    if (!pattern.empty()) return false;
    names = std::move(found);
    return true;
}

bool match_route(std::string_view pattern, const std::vector<std::string>& path, std::string& name) {
    std::vector<std::string> names;
    if (!match_route(pattern, path, names)) return false;
    if (!names.empty()) name = std::move(names.back());
    return true;
}

Result<void> check_query_keys(std::string_view known_keys, const HttpRequest& request) {
    for (const auto& [key, text] : request.query) {
        const auto is_key = [&key](const auto& known) { return std::string_view(known) == key; };
        if (std::ranges::any_of(std::views::split(known_keys, ' '), is_key)) continue;
        const std::string known = known_keys.empty() ? "" : "; known: " + std::string(known_keys);
        return fail(ErrorCode::invalid_argument, "query: key \"" + key + "\" is unknown here" + known);
    }
    return {};
}

}  // namespace larder
