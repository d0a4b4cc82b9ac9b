#include "cache/remote/http_get.h"

#include <curl/curl.h>

#include "base/hash.h"

namespace larder::cache {

std::string range_of(const HttpGet& get) {
    if (get.ask == HttpRequestKind::probe) return "0-0";
    if (get.ask != HttpRequestKind::range) return "";
    return std::to_string(get.offset) + "-" + std::to_string(get.offset + get.into.size() - 1);
}

std::int64_t tag_of_version(std::string_view version) {
    if (version.starts_with("W/")) version.remove_prefix(2);
    if (version.size() >= 2 && version.front() == '"' && version.back() == '"')
        version = version.substr(1, version.size() - 2);
    if (version.empty()) return 0;
    std::uint64_t hash = version.size();
    for (const char c : version) hash = mix64(hash ^ static_cast<unsigned char>(c));
    const auto tag = static_cast<std::int64_t>(hash >> 1);
    return tag == 0 ? 1 : tag;
}

std::int64_t tag_of_headers(const char* version, const char* last_modified) {
    if (version != nullptr) {
        if (const std::int64_t tag = tag_of_version(version); tag != 0) return tag;
    }
    if (last_modified == nullptr) return 0;
    const time_t when = curl_getdate(last_modified, nullptr);
    return when <= 0 ? 0 : std::int64_t{when} * 1'000'000'000;
}

}  // namespace larder::cache
