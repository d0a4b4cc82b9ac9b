#pragma once

// Checks an LMDB environment before its owner opens it. LMDB trusts its file: a truncated file kills the process that
// reads it, a flipped bit the process that writes to it. So the program larder-check-lmdb first walks the environment
// with LMDB in a process of its own. Nobody may write to the environment meanwhile; each owner holds a lock on its
// directory. LMDB does not verify values: rows should carry a checksum, which the owner checks when it reads them.

#include <lmdb.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace larder {

// The exit codes of larder-check-lmdb. Any other exit code is damage too; the first line of its output says what it
// found.
enum class LmdbCheckExit : std::uint8_t {
    sound = 0,
    damaged = 1,
    cannot_check = 2,
    not_renewed = 3,  // sound as far as a reader sees, but the new file cannot be written, as on a full disk
    cannot_read = 4,  // the disk gave an I/O error
};

struct LmdbCheckOptions {
    // Writes the rows to a new file, because a reader does not see all damage: a wrong list of free pages, for example,
    // harms the next writer. For an owner that opens the environment next; nobody may have it open meanwhile.
    bool renew = false;
    std::string program;                   // empty: larder-check-lmdb in the directory of this program
    std::int64_t stalled_ms_max = 60'000;  // a check without progress for this long is killed, and counts as damage
};

// Returns what is wrong with the environment in `directory`, in words, or nothing if it is sound or missing. Damage is
// reported only if a second check finds it as well. The environment must have exactly these databases, or none yet.
// Fails if it cannot be checked: the program is missing, even if there is no environment yet, or was killed by someone
// else, or memory is short. The error has EIO as its errno if the disk cannot be read. Blocks; any thread.
Result<std::optional<std::string>> find_lmdb_damage(const std::string& directory,
                                                    std::span<const std::string_view> databases,
                                                    const LmdbCheckOptions& options = {});

// Grows the file over all pages. Call after each commit and once after opening. LMDB may leave pages at the end
// unwritten if they came free within the transaction; with the file grown over them, a shorter file is known to be
// truncated. With `slack_bytes` the file stays longer than its pages by at least half of `slack_bytes`: the next
// transaction fits in, even if the process is killed before it grows the file again. Returns false if the file cannot
// grow; errno says why.
bool grow_file_over_lmdb_pages(MDB_env* environment, std::uint64_t slack_bytes = 0);

}  // namespace larder
