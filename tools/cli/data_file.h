#pragma once

// Where a file lies that goes with the programs and is none itself, a script they run.

#include <string>
#include <string_view>

namespace larder::cli {

// `path` is from the repository's root. Of an installed program the file in share/larder beside its bin, else that of
// the source tree it was built from.
std::string data_file(std::string_view path);

}  // namespace larder::cli
