// Any bytes as a page of a listing of Google Cloud Storage. Objects of an accepted page have keys, refused input says
// why. A query encodes the prefix and the continuation, so that nothing in them acts as query syntax.

#include <cstdint>
#include <span>
#include <string_view>

#include "base/assert.h"
#include "base/server/percent_encoding.h"
#include "cache/remote/gcs_listing.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace larder::cache;
    const auto page = parse_gcs_page(std::as_bytes(std::span(data, size)));
    LARDER_ASSERT(page || !page.error().message.empty());
    if (!page) return 0;
    for (const BucketObject& object : page->objects) {
        LARDER_ASSERT(!object.key.empty());
        const std::string query = gcs_list_query(object.key, page->next);
        const std::string_view rest = std::string_view(query).substr(query.find("prefix=") + 7);
        const std::string_view prefix = rest.substr(0, rest.find('&'));
        LARDER_ASSERT(prefix.find_first_of("# /?=") == std::string_view::npos);
        LARDER_ASSERT(larder::percent_decode_leniently(prefix) == object.key);
    }
    return 0;
}
