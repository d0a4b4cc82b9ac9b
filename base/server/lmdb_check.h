#pragma once

// Whether LMDB may open an environment. LMDB trusts its file: a truncated one kills its reader, a flipped bit its
// writer. So every page and row is checked by plain reads first. What rows must look like, the owner of the environment
// says; they should carry a checksum.

#include <lmdb.h>

#include <cstdint>
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

// After each commit, and once opened. LMDB may leave pages at the end unwritten when they came free within the
// transaction; the file is grown over them, so that a shorter one is known to be truncated. With `slack_bytes` it is
// kept at least half of that longer, for the next transaction of a process that may be killed in between. False when
// the file cannot grow; errno says why.
bool cover_lmdb_pages(MDB_env* environment, std::uint64_t slack_bytes = 0);

}  // namespace larder
