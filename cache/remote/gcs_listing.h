#pragma once

// The pages of Google Cloud Storage's listing: makes the query for a page and parses the JSON of a page. Source: Cloud
// Storage JSON API, Objects: list.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cache/remote/bucket_listing.h"

namespace larder::cache {

// `page_token`: BucketPage::next of the previous page; empty: the first page.
std::string gcs_list_query(std::string_view prefix, std::string_view page_token);

Result<BucketPage> parse_gcs_page(std::span<const std::byte> body);

}  // namespace larder::cache
