#pragma once

// The raw format: each object is one sample and one block. An object's label is its top directory, the classes are the
// top directories by name; objects at the root have no label.

#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/object_source.h"

namespace larder::cache {

// Fills `content` (objects and classes) and `notes`; `where` is the listing's source, for messages.
Result<void> index_raw(ObjectListing listing, const std::string& where, DatasetContent& content,
                       std::vector<std::string>& notes);

}  // namespace larder::cache
