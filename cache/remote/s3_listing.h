#pragma once

// Pages of S3's ListObjectsV2: the query that asks for one, and what its XML says. Source: Amazon S3 API Reference,
// ListObjectsV2.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace larder::cache {

struct S3Object {
    std::string key;
    std::uint64_t size_bytes = 0;
    std::string etag;
};

struct S3Page {
    std::vector<S3Object> objects;
    std::string next;  // what the next page is asked with; empty: this is the last
};

// Sorted and encoded as signatures want it. `from`: a page's `next`.
std::string s3_list_query(std::string_view prefix, std::string_view from);

Result<S3Page> parse_s3_page(std::span<const std::byte> xml);

}  // namespace larder::cache
