#include "cache/remote/trusted_endpoint.h"

#include <algorithm>

namespace larder::cache {

bool is_endpoint_of(std::string_view endpoint, std::span<const std::string_view> hosts) {
    constexpr std::string_view kHttps = "https://";
    if (!endpoint.starts_with(kHttps)) return false;
    endpoint.remove_prefix(kHttps.size());
    const std::string_view host = endpoint.substr(0, endpoint.find_first_of(":/"));
    // No other character is in these hosts, and some end the host for one parser and not for another.
    const auto allowed = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-';
    };
    if (!std::ranges::all_of(host, allowed)) return false;
    return std::ranges::any_of(
        hosts, [&](std::string_view known) { return known.starts_with('.') ? host.ends_with(known) : host == known; });
}

}  // namespace larder::cache
