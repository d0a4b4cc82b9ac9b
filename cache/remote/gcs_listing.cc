#include "cache/remote/gcs_listing.h"

#include <boost/json.hpp>

#include <charconv>

#include "base/server/percent_encoding.h"

namespace larder::cache {
namespace {

// The API writes 64-bit numbers as texts.
std::string_view text_in(const boost::json::object& object, const char* key) {
    const boost::json::value* found = object.if_contains(key);
    const boost::json::string* text = found == nullptr ? nullptr : found->if_string();
    return text == nullptr ? std::string_view() : std::string_view(text->data(), text->size());
}

}  // namespace

std::string gcs_list_query(std::string_view prefix, std::string_view page_token) {
    std::string query = "maxResults=1000&fields=nextPageToken,items(name,size,generation)&prefix=";
    query += percent_encode(prefix);
    if (!page_token.empty()) query += "&pageToken=" + percent_encode(page_token);
    return query;
}

Result<BucketPage> parse_gcs_page(std::span<const std::byte> body) {
    boost::system::error_code failure;
    const boost::json::value value =
        boost::json::parse({reinterpret_cast<const char*>(body.data()), body.size()}, failure);
    if (failure) return fail(ErrorCode::protocol, "it is not JSON: " + failure.message());
    const boost::json::object* result = value.if_object();
    if (result == nullptr) return fail(ErrorCode::protocol, "it is not a JSON object");
    BucketPage page;
    page.next = text_in(*result, "nextPageToken");
    const boost::json::value* items = result->if_contains("items");
    if (items == nullptr || items->is_null()) return page;
    const boost::json::array* listed = items->if_array();
    if (listed == nullptr) return fail(ErrorCode::protocol, "its items are not a list");
    page.objects.reserve(listed->size());
    for (const boost::json::value& item : *listed) {
        const boost::json::object* entry = item.if_object();
        if (entry == nullptr) return fail(ErrorCode::protocol, "an entry is not a JSON object");
        BucketObject object{.key = std::string(text_in(*entry, "name")),
                            .version = std::string(text_in(*entry, "generation"))};
        const std::string_view size = text_in(*entry, "size");
        const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), object.size_bytes);
        if (object.key.empty() || error != std::errc{} || end != size.data() + size.size()) {
            return fail(ErrorCode::protocol, "an entry has no name or no size");
        }
        page.objects.push_back(std::move(object));
    }
    return page;
}

}  // namespace larder::cache
