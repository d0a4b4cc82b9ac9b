#pragma once

// "Did you mean ...?": finds the known name that a misspelt one most likely stands for.

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace larder {

// Returns the known name that needs the fewest letters changed, or nothing if more than 1 + wrong.size() / 4 letters
// differ. A part of a name is enough: "bandwith" stands for "remote_bandwidth".
std::optional<std::string> nearest_name(std::string_view wrong, std::span<const std::string> known);

}  // namespace larder
