#include "cache/remote/azure_listing.h"

#include <pugixml.hpp>

#include <charconv>

#include "base/server/percent_encoding.h"

namespace larder::cache {

std::string azure_list_query(std::string_view prefix, std::string_view marker) {
    std::string query = "restype=container&comp=list&maxresults=1000&prefix=" + percent_encode(prefix);
    if (!marker.empty()) query += "&marker=" + percent_encode(marker);
    return query;
}

Result<BucketPage> parse_azure_page(std::span<const std::byte> xml) {
    pugi::xml_document document;
    // A name may be all spaces.
    const auto parsed =
        document.load_buffer(xml.data(), xml.size(), pugi::parse_default | pugi::parse_ws_pcdata_single);
    if (!parsed) {
        return fail(ErrorCode::protocol, std::string("it is not XML: ") + parsed.description() + " at byte " +
                                             std::to_string(parsed.offset));
    }
    const pugi::xml_node result = document.child("EnumerationResults");
    if (!result) return fail(ErrorCode::protocol, "it has no EnumerationResults");
    BucketPage page;
    for (const pugi::xml_node& item : result.child("Blobs").children("Blob")) {
        const pugi::xml_node properties = item.child("Properties");
        if (std::string_view(properties.child_value("ResourceType")) == "directory") continue;
        BucketObject object{.key = item.child_value("Name"), .version = properties.child_value("Etag")};
        // A name that XML cannot hold is encoded.
        if (item.child("Name").attribute("Encoded").as_bool()) object.key = percent_decode_leniently(object.key);
        const std::string_view size = properties.child_value("Content-Length");
        const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), object.size_bytes);
        if (object.key.empty() || error != std::errc{} || end != size.data() + size.size()) {
            return fail(ErrorCode::protocol, "an entry has no name or no size");
        }
        page.objects.push_back(std::move(object));
    }
    page.next = result.child_value("NextMarker");
    return page;
}

}  // namespace larder::cache
