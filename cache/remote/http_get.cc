#include "cache/remote/http_get.h"

#include <curl/curl.h>

#include "base/hash.h"

namespace larder::cache {

std::int64_t tag_of_etag(std::string_view etag) {
    if (etag.starts_with("W/")) etag.remove_prefix(2);
    if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
    if (etag.empty()) return 0;
    std::uint64_t hash = etag.size();
    for (const char c : etag) hash = mix64(hash ^ static_cast<unsigned char>(c));
    const auto tag = static_cast<std::int64_t>(hash >> 1);
    return tag == 0 ? 1 : tag;
}

std::int64_t tag_of_headers(const char* etag, const char* last_modified) {
    if (etag != nullptr) {
        if (const std::int64_t tag = tag_of_etag(etag); tag != 0) return tag;
    }
    if (last_modified == nullptr) return 0;
    const time_t when = curl_getdate(last_modified, nullptr);
    return when <= 0 ? 0 : std::int64_t{when} * 1'000'000'000;
}

}  // namespace larder::cache
