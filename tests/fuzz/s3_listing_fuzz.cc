// Any bytes as a page of an S3 listing. Objects of an accepted page have keys, refused input says why. A query encodes
// the key that it starts from, so that nothing in the key acts as query syntax.

#include <cstdint>
#include <span>
#include <string_view>

#include "base/assert.h"
#include "base/server/percent_encoding.h"
#include "cache/remote/s3_listing.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace larder::cache;
    const auto page = parse_s3_page(std::as_bytes(std::span(data, size)));
    LARDER_ASSERT(page || !page.error().message.empty());
    if (!page) return 0;
    for (const BucketObject& object : page->objects) {
        LARDER_ASSERT(!object.key.empty());
        const std::string query = s3_list_query(object.key, page->next);
        const std::string_view rest = std::string_view(query).substr(query.rfind('=') + 1);
        LARDER_ASSERT(rest.find_first_of("&# /?") == std::string_view::npos);
        LARDER_ASSERT(larder::percent_decode_leniently(rest) == object.key);
    }
    return 0;
}
