#pragma once

// Finds data files that come with the programs, such as scripts they run.

#include <string>
#include <string_view>

namespace larder::cli {

// Returns the file's path; `path` is relative to the repository's root. An installed program uses share/larder beside
// its bin, any other the source tree it was built from.
std::string data_file(std::string_view path);

}  // namespace larder::cli
