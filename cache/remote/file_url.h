#pragma once

// The absolute path a "file://" URL names: "file:///data/my%20images" is /data/my images. An empty host and "localhost"
// are this machine; other hosts, other schemes and broken percent signs are errors that say so.

#include <string>
#include <string_view>

#include "base/error.h"

namespace larder::cache {

Result<std::string> path_of_file_url(std::string_view url);

}  // namespace larder::cache
