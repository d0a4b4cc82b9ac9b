#pragma once

// Checks an LMDB environment before LMDB opens it. LMDB trusts its file: a truncated file kills its reader, a flipped
// bit its writer. So every page and row is checked by plain reads first. The owner of the environment says what rows
// must look like; they should carry a checksum.

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

// Returns what is wrong with the environment in `directory`, in words, or nothing if it is sound or missing. The
// environment must have exactly these databases, or none yet.
std::optional<std::string> find_lmdb_damage(const std::string& directory, std::span<const LmdbDatabase> databases);

// Grows the file over all pages. Call after each commit and once after opening. LMDB may leave pages at the end
// unwritten if they came free within the transaction; with the file grown over them, a shorter file is known to be
// truncated. With `slack_bytes` the file is kept at least half of that longer, for the next transaction of a process
// that may be killed in between. Returns false if the file cannot grow; errno says why.
bool cover_lmdb_pages(MDB_env* environment, std::uint64_t slack_bytes = 0);

}  // namespace larder
