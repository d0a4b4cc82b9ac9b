#include "cache/remote/s3_listing.h"

#include <pugixml.hpp>

#include <charconv>

#include "base/server/percent_encoding.h"

namespace larder::cache {

std::string s3_list_query(std::string_view prefix, std::string_view continuation_token) {
    std::string query;
    if (!continuation_token.empty()) query += "continuation-token=" + percent_encode(continuation_token) + "&";
    // Does not request encoded keys (encoding-type), because some servers would encode the continuation token too.
    return query + "list-type=2&max-keys=1000&prefix=" + percent_encode(prefix);
}

Result<BucketPage> parse_s3_page(std::span<const std::byte> xml) {
    pugi::xml_document document;
    const auto parsed = document.load_buffer(xml.data(), xml.size());
    if (!parsed) {
        return fail(ErrorCode::protocol, std::string("it is not XML: ") + parsed.description() + " at byte " +
                                             std::to_string(parsed.offset));
    }
    const pugi::xml_node result = document.child("ListBucketResult");
    if (!result) return fail(ErrorCode::protocol, "it has no ListBucketResult");
    const bool keys_are_encoded = std::string_view(result.child_value("EncodingType")) == "url";
    BucketPage page;
    for (const pugi::xml_node& item : result.children("Contents")) {
        BucketObject object{.key = item.child_value("Key"), .version = item.child_value("ETag")};
        // Some servers encode a space as '+'.
        if (keys_are_encoded) {
            for (char& c : object.key) c = c == '+' ? ' ' : c;
            object.key = percent_decode_leniently(object.key);
        }
        const std::string_view size = item.child_value("Size");
        const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), object.size_bytes);
        if (object.key.empty() || error != std::errc{} || end != size.data() + size.size()) {
            return fail(ErrorCode::protocol, "an entry has no key or no size");
        }
        page.objects.push_back(std::move(object));
    }
    const bool is_truncated = std::string_view(result.child_value("IsTruncated")) == "true";
    if (is_truncated) page.next = result.child_value("NextContinuationToken");
    if (is_truncated && page.next.empty())
        return fail(ErrorCode::protocol, "it is truncated, but has no continuation token");
    return page;
}

}  // namespace larder::cache
