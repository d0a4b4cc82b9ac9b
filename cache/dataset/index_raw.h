#pragma once

// Indexes the raw format: each object is one sample and one block. The classes are the top directories, sorted by name.
// The label of an object is its top directory; an object at the root has no label.

#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/remote/object_source.h"

namespace larder::cache {

// Fills `content` (objects and classes) and `notes`. `where` names the source of the listing in messages.
Result<void> index_raw(ObjectListing listing, const std::string& where, DatasetContent& content,
                       std::vector<std::string>& notes);

}  // namespace larder::cache
