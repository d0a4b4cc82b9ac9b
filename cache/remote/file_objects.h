#pragma once

// The objects of a directory: what indexing sees of a `file://` URL. A file is an object, by its path below the root;
// symbolic links are followed, and what begins with a dot is left out.

#include <memory>
#include <string>

#include "cache/object_source.h"

namespace larder::cache {

// `root` is an absolute path; that it can be read shows when it is listed.
std::unique_ptr<ObjectSource> make_file_objects(std::string root);

}  // namespace larder::cache
