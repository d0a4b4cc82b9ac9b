#pragma once

// How a store lists its objects, page by page. Each store with buckets has one: s3_origin.h, gcs_origin.h,
// azure_origin.h.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace larder::cache {

struct BucketObject {
    std::string key;
    std::uint64_t size_bytes = 0;
    std::string version;  // equals what HttpOrigin::version_header says when the object is read; empty: none
};

struct BucketPage {
    std::vector<BucketObject> objects;
    std::string next;  // continuation of the next page; empty: this is the last page
};

class BucketListing {
public:
    virtual ~BucketListing() = default;
    // Returns the URL of a page of the objects whose keys begin with `prefix`. `continuation`: BucketPage::next of the
    // previous page; empty: the first page.
    virtual std::string page_url(std::string_view prefix, std::string_view continuation) const = 0;
    virtual Result<BucketPage> parse_page(std::span<const std::byte> body) const = 0;
};

}  // namespace larder::cache
