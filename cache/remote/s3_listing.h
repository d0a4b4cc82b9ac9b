#pragma once

// The pages of S3's ListObjectsV2: makes the query for a page and parses the XML of a page. Source: Amazon S3 API
// Reference, ListObjectsV2.

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
    std::string next;  // continuation token of the next page; empty: this is the last page
};

// Returns the query, sorted and encoded as signatures require. `continuation_token`:
// S3Page::next of the previous page; empty: the first page.
std::string s3_list_query(std::string_view prefix, std::string_view continuation_token);

Result<S3Page> parse_s3_page(std::span<const std::byte> xml);

}  // namespace larder::cache
