#pragma once

// The cell configuration's file. docs/scheduling.md shows one; every key is read strictly: an unknown one, a wrong type
// or a wrong value is an Error that names line, key, value and what is allowed.

#include <string>
#include <string_view>
#include <vector>

#include "scheduler/cells/cell_config.h"

namespace larder::scheduler {

// `source` is what errors call the text: the file's path.
Result<CellConfig> parse_cell_config(std::string_view toml, std::string_view source);
Result<CellConfig> load_cell_config(const std::string& path);

// "gpu[00-15]" stands for gpu00, gpu01, ..., gpu15, as cluster managers write host lists; at most one range, at most
// 100000 names. Empty: it is not well formed.
std::vector<std::string> expand_names(std::string_view text);

}  // namespace larder::scheduler
