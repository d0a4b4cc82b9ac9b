#pragma once

// The ObjectSource of a `file://` URL, for indexing. Each file below the root is an object, named by its relative path.
// Files and directories whose names begin with a dot are left out. A symbolic link is followed if it stays beneath the
// root (LinkRule::beneath); any other link is an error, because who may write to the root could make the daemon read
// any file. Links on the way to the root are followed if root or this process's user owns them. With
// `follow_symlinks` all links are followed.

#include <memory>
#include <string>
#include <string_view>

#include "cache/remote/object_source.h"

namespace larder::cache {

// `root` is an absolute path. An unreadable root is reported by `list`.
std::unique_ptr<ObjectSource> make_file_objects(std::string root, bool follow_symlinks);

// The error for `path`, which the kernel refused because a link on it leads out of `root`.
Error link_leads_out(const std::string& root, std::string_view path);

}  // namespace larder::cache
