#pragma once

// Reads the file of the cell configuration. docs/policies.md shows one. Reading is strict: an unknown key, a wrong
// type or a wrong value is an Error that names line, key, value and what is allowed.

#include <string>
#include <string_view>
#include <vector>

#include "scheduler/cells/cell_config.h"

namespace larder::scheduler {

// `source` names the text in errors: the file's path.
Result<CellConfig> parse_cell_config(std::string_view toml, std::string_view source);
Result<CellConfig> load_cell_config(const std::string& path);

// Expands "gpu[00-15]" to gpu00, gpu01, ..., gpu15, as cluster managers write host lists; at most one range, at most
// 100000 names. Returns an empty list if the text is malformed.
std::vector<std::string> expand_names(std::string_view text);

}  // namespace larder::scheduler
