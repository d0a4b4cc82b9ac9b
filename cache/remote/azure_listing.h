#pragma once

// The pages of Azure's List Blobs: makes the query for a page and parses the XML of a page. Source: Azure Blob Storage
// REST API, List Blobs.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cache/remote/bucket_listing.h"

namespace larder::cache {

// `marker`: BucketPage::next of the previous page; empty: the first page.
std::string azure_list_query(std::string_view prefix, std::string_view marker);

// Leaves out the directories of accounts with a hierarchical namespace, which are listed beside their files.
Result<BucketPage> parse_azure_page(std::span<const std::byte> xml);

}  // namespace larder::cache
