#pragma once

// A durable store of text rows under text keys: an LMDB environment whose every value carries a CRC32C of key and text,
// because LMDB returns flipped bits as good data. A change is saved when `write` returns; Durability says what it
// survives. A lost or damaged environment starts afresh, and the damaged one is moved to DIRECTORY.damaged; one of a
// newer version is refused. One process at a time, which the owner ensures, and one thread at a time.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

struct MDB_env;

namespace larder {

struct Row {
    std::string key;
    std::optional<std::string> text;  // none: the row is removed
};

// seal_row adds the CRC to a row's text, as values store it. open_row removes it; nullopt if the CRC is wrong.
std::string seal_row(std::string_view key, std::string_view text);
std::optional<std::string_view> open_row(std::string_view key, std::string_view value);

enum class Durability : std::uint8_t {
    machine,  // a change survives a power cut once it is written: `write` waits for the disk
    // A change survives the process only. A power cut may lose all rows, older ones too, because pages are overwritten
    // in any order.
    process,
};

struct RowStoreOptions {
    std::string directory;  // for the environment alone; created if missing, its parent is not
    Durability durability = Durability::machine;
    const char* database = "state";
    std::uint64_t map_bytes = std::uint64_t{1} << 30;  // address space, and the most the store can take
    std::uint64_t version = 1;                         // in the row "version", as {"version": 1}
    std::string_view noun = "state";                   // for messages: "open the state in ..."
    std::string_view program;                          // for messages: the program that must be newer
    // Called with each row except the version, in the order of keys. The error `corrupt` means the row is not what was
    // written; the whole store then counts as damaged.
    std::function<Result<void>(std::string_view key, std::string_view text)> take;
    // Called if the store is damaged: the callee discards all rows that `take` has given it. `why` is for the log.
    std::function<void(const std::string& why, const std::string& put_aside_as)> lost;
};

class RowStore {
public:
    static Result<std::unique_ptr<RowStore>> open(const RowStoreOptions& options);
    ~RowStore();
    RowStore(const RowStore&) = delete;
    RowStore& operator=(const RowStore&) = delete;

    // True if there was no store, or a damaged one.
    bool is_new() const { return is_new_; }
    // Writes all of the rows or, on error, none. Error: no_space if the map or the disk is full. May be called again
    // after any error.
    Result<void> write(std::span<const Row> rows);

private:
    RowStore() = default;
    Result<void> open_environment();
    int try_write(std::span<const Row> rows);
    Result<void> load(const RowStoreOptions& options);
    void grow_file_over_pages();

    std::string directory_;
    std::string noun_;
    std::string database_name_;
    std::uint64_t map_bytes_ = 0;
    Durability durability_ = Durability::machine;
    MDB_env* environment_ = nullptr;
    unsigned database_ = 0;
    bool is_new_ = false;
};

}  // namespace larder
