#pragma once

// Detects the format of a dataset when the user names none: from an index.json at the root or below, or from the names
// of all files. The format is raw otherwise. Reads names and one index.json.

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/protocol/manifest.h"
#include "cache/remote/object_source.h"

namespace larder::cache {

Result<protocol::Format> detect_format(ObjectSource& source, const ObjectListing& listing);

// Returns false if the names alone rule out samples of `format`.
bool may_have_samples(const ObjectListing& listing, protocol::Format format);

// A listing in which some objects have names of shards and others do not, such as tars beside a README.txt.
struct MixedListing {
    std::vector<std::string_view> odd_paths;  // objects that are not shards; if the format is raw: of the rarer kind
    std::string doubt;                        // raw only: why the user may have meant shards; one sentence
};

// `format`: the format of the dataset. Returns empty fields if all objects are shards, or none is.
MixedListing mixed_listing(const ObjectListing& listing, protocol::Format format);

}  // namespace larder::cache
