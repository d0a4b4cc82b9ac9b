#pragma once

// What format a dataset has, where nobody says: by the index.json at its root or below, by what all its files are
// called, and raw otherwise. Reads names, and one index.json.

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/object_source.h"
#include "cache/protocol/manifest.h"

namespace larder::cache {

Result<protocol::Format> detect_format(ObjectSource& source, const ObjectListing& listing);

// True if an object is called as shards of `format` are. Of formats whose files are known by their names.
bool has_shards(const ObjectListing& listing, protocol::Format format);

// A listing in which some objects are shards by their names and others are not, as tars beside a README.txt.
struct MixedListing {
    std::vector<std::string_view> odd;  // paths of those that are no shards
    std::string doubt;                  // of a raw dataset: why it may have been meant as shards; one sentence
};

// `format`: that the dataset has. Nothing is mixed where all objects are shards, or none is.
MixedListing mixed_listing(const ObjectListing& listing, protocol::Format format);

}  // namespace larder::cache
