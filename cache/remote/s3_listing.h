#pragma once

// The pages of S3's ListObjectsV2: makes the query for a page and parses the XML of a page. Source: Amazon S3 API
// Reference, ListObjectsV2.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cache/remote/bucket_listing.h"

namespace larder::cache {

// Returns the query, sorted and encoded as signatures require. `continuation_token`:
// BucketPage::next of the previous page; empty: the first page.
std::string s3_list_query(std::string_view prefix, std::string_view continuation_token);

Result<BucketPage> parse_s3_page(std::span<const std::byte> xml);

}  // namespace larder::cache
