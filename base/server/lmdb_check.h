#pragma once

// Whether LMDB may open an environment. LMDB trusts its file: a truncated one kills its reader, a flipped bit its
// writer. So every page and row is checked by plain reads first. What rows must look like, the owner of the environment
// says; they should carry a checksum.

#include <functional>
#include <optional>
#include <span>
#include <string>

namespace larder {

using LmdbBytes = std::span<const unsigned char>;

struct LmdbDatabase {
    std::string name;
    std::function<bool(LmdbBytes key, LmdbBytes value)> row_is_good;
};

// What is wrong with the environment in `directory`, in words; nothing when it is sound or missing. It must have no
// other databases than these, and all of them unless it has none yet.
std::optional<std::string> find_lmdb_damage(const std::string& directory, std::span<const LmdbDatabase> databases);

}  // namespace larder
