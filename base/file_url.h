#pragma once

// The absolute path a "file://" URL names: "file:///data/my%20images" is /data/my images. An empty host and "localhost"
// are this machine; other hosts, other schemes and broken percent signs are errors that say so.

#include <string>
#include <string_view>

#include "base/error.h"

namespace larder {

Result<std::string> path_of_file_url(std::string_view url);

// Returns the URL of an absolute path. Characters with a meaning in URLs (%, ?, #) are percent-encoded.
std::string file_url_of_path(std::string_view path);

}  // namespace larder
