#pragma once

// "Did you mean ...?": finds the known name that a misspelt one most likely stands for.

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace larder {

// Returns the known name that needs the fewest changes, or nothing if it needs more than 1 + wrong.size() / 4. A change
// inserts, removes or replaces a letter, or swaps two neighbours. The beginning of exactly one name is enough: "comp"
// stands for "compare". So is a part of a name: "bandwith" stands for "remote_bandwidth".
std::optional<std::string> nearest_name(std::string_view wrong, std::span<const std::string> known);

}  // namespace larder
