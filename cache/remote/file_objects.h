#pragma once

// The ObjectSource of a `file://` URL, for indexing. Each file below the root is an object, named by its relative path.
// Symbolic links are followed. Files and directories whose names begin with a dot are left out.

#include <memory>
#include <string>

#include "cache/object_source.h"

namespace larder::cache {

// `root` is an absolute path. An unreadable root is reported by `list`.
std::unique_ptr<ObjectSource> make_file_objects(std::string root);

}  // namespace larder::cache
