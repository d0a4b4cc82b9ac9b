#pragma once

// What format a dataset has, where nobody says: by the index.json at its root or below, by what all its files are
// called, and raw otherwise. Reads names, and one index.json.

#include "base/error.h"
#include "cache/object_source.h"
#include "cache/protocol/manifest.h"

namespace larder::cache {

Result<protocol::Format> detect_format(ObjectSource& source, const ObjectListing& listing);

}  // namespace larder::cache
