#include "base/server/http_target.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "base/server/percent_encoding.h"

namespace larder {
namespace {

// Calls `take(part)` for each part of `text` between separators; stops at the first false.
template <typename Take>
bool for_each_part(std::string_view text, char separator, Take take) {
    while (!text.empty()) {
        const std::size_t end = std::min(text.find(separator), text.size());
        if (end > 0 && !take(text.substr(0, end))) return false;
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return true;
}

std::string this_machine() {
    std::array<char, 256> machine{};
    return ::gethostname(machine.data(), machine.size() - 1) == 0 ? machine.data() : "";
}

}  // namespace

Result<void> parse_http_target(std::string_view target, HttpRequest& request) {
    const std::size_t question = std::min(target.find('?'), target.size());
    const std::string_view path = target.substr(0, question);
    const std::string_view query = target.substr(std::min(question + 1, target.size()));
    if (!path.starts_with('/')) return fail(ErrorCode::invalid_argument, "the target does not begin with /");
    const bool path_good = for_each_part(path, '/', [&](std::string_view part) {
        auto segment = percent_decode(part);
        if (!segment) return false;
        request.path.push_back(std::move(*segment));
        return true;
    });
    const bool query_good = for_each_part(query, '&', [&](std::string_view part) {
        const std::size_t equals = std::min(part.find('='), part.size());
        auto key = percent_decode(part.substr(0, equals), true);
        auto value = percent_decode(part.substr(std::min(equals + 1, part.size())), true);
        if (!key || !value) return false;
        request.query.insert_or_assign(std::move(*key), std::move(*value));
        return true;
    });
    if (!path_good || !query_good) return fail(ErrorCode::invalid_argument, "the target has a broken %XX");
    return {};
}

Result<HostPort> parse_host_port(std::string_view text) {
    const std::size_t colon = text.rfind(':');
    if (colon != std::string_view::npos) {
        std::string_view host = text.substr(0, colon);
        const std::string_view digits = text.substr(colon + 1);
        if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
        HostPort result{std::string(host == "localhost" ? "127.0.0.1" : host), 0};
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), result.port);
        if (!host.empty() && error == std::errc{} && end == digits.data() + digits.size()) return result;
    }
    return fail(ErrorCode::invalid_argument,
                "\"" + std::string(text) + "\" is not an address: expected IP:PORT such as 127.0.0.1:9464");
}

bool is_tcp_endpoint(std::string_view text) {
    for (const std::string_view scheme : {"http://", "https://"}) {
        if (!text.starts_with(scheme)) continue;
        const std::string_view place = text.substr(scheme.size());
        const bool is_printable = std::ranges::all_of(place, [](char letter) { return letter > ' ' && letter < 0x7f; });
        return is_printable && place.find_first_of("/@?#") == std::string_view::npos && parse_host_port(place);
    }
    return false;
}

bool is_own_host(std::string_view host) {
    const bool is_v6 = host.starts_with('[');
    host = is_v6 ? host.substr(1, host.find(']') - 1) : host.substr(0, host.find(':'));
    if (host == "localhost") return true;
    const std::string text(host);
    in6_addr address{};
    if (::inet_pton(is_v6 ? AF_INET6 : AF_INET, text.c_str(), &address) == 1) return true;
    return !text.empty() && text == this_machine();
}

std::string own_host_text() {
    return "by an IP address, as localhost or by this machine's name " + this_machine();
}

bool is_origin_of(std::string_view origin, std::string_view host) {
    for (const std::string_view scheme : {"http://", "https://"}) {
        if (origin.starts_with(scheme)) return origin.substr(scheme.size()) == host;
    }
    return false;
}

bool is_loopback(const std::string& ip_address) {
    in_addr v4{};
    in6_addr v6{};
    if (::inet_pton(AF_INET, ip_address.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
    return ::inet_pton(AF_INET6, ip_address.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace larder
