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

// False if the names alone tell that a dataset of `format` has no sample here.
bool may_have_samples(const ObjectListing& listing, protocol::Format format);

// A listing in which some objects are shards by their names and others are not, as tars beside a README.txt.
struct MixedListing {
    std::vector<std::string_view> odd;  // paths of those that are no shards; of a raw dataset: of the fewer kind
    std::string doubt;                  // of a raw dataset: why it may have been meant as shards; one sentence
};

// `format`: that the dataset has. Nothing is mixed where all objects are shards, or none is.
MixedListing mixed_listing(const ObjectListing& listing, protocol::Format format);

}  // namespace larder::cache
