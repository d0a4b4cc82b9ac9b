#pragma once

// A durable store of text rows under text keys. A change is saved when `write` returns. LMDB keeps the rows of one
// machine (base/server/lmdb_rows.h), and etcd those of several that stand in for each other (base/server/etcd_rows.h).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace larder {

struct Row {
    std::string key;
    std::optional<std::string> text;  // none: the row is removed
};

// seal_row adds a CRC32C of key and text to a row's text, as values store it. open_row removes it; nullopt if the CRC
// is wrong.
std::string seal_row(std::string_view key, std::string_view text);
std::optional<std::string_view> open_row(std::string_view key, std::string_view value);

enum class Durability : std::uint8_t {
    machine,  // a change survives a power cut once it is written: `write` waits for the disk
    // A change survives the process only. A power cut may lose all rows, older ones too, because pages are overwritten
    // in any order.
    process,
};

// The row with the version of all others: {"version": 1}.
inline constexpr std::string_view kVersionKey = "version";

struct RowStoreOptions {
    // LMDB's: for the environment alone; created if missing, its parent is not.
    std::string directory;
    Durability durability = Durability::machine;
    const char* database = "state";
    std::uint64_t map_bytes = std::uint64_t{1} << 30;  // address space, and the most the store can take

    std::uint64_t version = 1;
    std::string_view noun = "state";  // for messages: "open the state in ..."; etcd's keys have it, too
    std::string_view program;         // for messages: the program that must be newer
    // Called with each row except the version, in the order of keys. The error `corrupt` means the row is not what was
    // written; the whole store then counts as damaged.
    std::function<Result<void>(std::string_view key, std::string_view text)> take;
    // Called with an error `corrupt` about a row of etcd that does not match its CRC. Returns it, or nothing if the
    // store can do without the row. Empty: it never can.
    std::function<Result<void>(std::string_view key, const Error& error)> damaged;
    // Called if LMDB's store is damaged: the callee discards all rows that `take` has given it. `why` is for the log.
    std::function<void(const std::string& why, const std::string& put_aside_as)> lost;
};

class RowStore {
public:
    virtual ~RowStore() = default;

    // True if there was no store, or a damaged one.
    virtual bool is_new() const = 0;
    // Writes all of the rows or, on error, none. Error: no_space if the store or its disk is full. May be called again
    // after any error. With etcd, an error may come true later: rows that etcd took without an answer, or that are on
    // their way when this process ends, are found by the next one. So a caller who gives rows up writes them back.
    virtual Result<void> write(std::span<const Row> rows) = 0;
    // Return the number of rows, and the bytes of their keys and texts, up to which a write costs little more than one
    // of a single row.
    virtual std::size_t rows_at_once() const { return std::numeric_limits<std::size_t>::max(); }
    virtual std::size_t bytes_at_once() const { return std::numeric_limits<std::size_t>::max(); }
};

// Returns the bytes of the keys and texts.
std::size_t bytes_of(std::span<const Row> rows);

// Opens a store. A store of a newer version is refused.
using OpenRows = std::function<Result<std::unique_ptr<RowStore>>(const RowStoreOptions& options)>;

Row version_row(std::uint64_t version);
// Returns an error if the version in this row's text is newer than `options.version`, or is none. `where` names the
// store for messages.
Result<void> check_version(std::string_view text, const RowStoreOptions& options, const std::string& where);

}  // namespace larder
