#pragma once

// Rows of text under text keys that must survive the process: an LMDB environment whose every value carries a CRC32C of
// key and text, because LMDB hands out flipped bytes as good ones. A change is on record when `write` returns; what
// that means is the owner's choice (Durability). A lost or damaged environment starts afresh, the damaged one put aside
// as DIRECTORY.damaged; one from a newer version is refused. One process at a time, which its owner sees to, and one
// thread at a time.

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
    std::optional<std::string> text;  // none: to be removed
};

// CRC and text, as a row's value has them; and back, where the CRC is right.
std::string seal_row(std::string_view key, std::string_view text);
std::optional<std::string_view> open_row(std::string_view key, std::string_view value);

enum class Durability : std::uint8_t {
    machine,  // a change survives a power cut once it is written: `write` waits for the disk
    // A change survives the process only. A power cut may lose all rows, older ones too, as pages are written over in
    // any order.
    process,
};

struct RowStoreOptions {
    std::string directory;  // of the environment alone; made if missing, its parent is not
    Durability durability = Durability::machine;
    const char* database = "state";
    std::uint64_t map_bytes = std::uint64_t{1} << 30;  // address space, and the most it can take
    std::uint64_t version = 1;                         // in the row "version", as {"version": 1}
    std::string_view noun = "state";                   // for messages: "open the state in ..."
    std::string_view program;                          // likewise: who must be newer
    // Given each row that is there but the version, in the order of keys. corrupt: the row cannot be what was written,
    // and all counts as damaged.
    std::function<Result<void>(std::string_view key, std::string_view text)> take;
    // What was taken is damaged and counts no longer; `why` is for the log.
    std::function<void(const std::string& why, const std::string& put_aside_as)> lost;
};

class RowStore {
public:
    static Result<std::unique_ptr<RowStore>> open(const RowStoreOptions& options);
    ~RowStore();
    RowStore(const RowStore&) = delete;
    RowStore& operator=(const RowStore&) = delete;

    // There was none, or a damaged one.
    bool afresh() const { return afresh_; }
    // All of the rows or, with the error, none. no_space: the map or the disk is full.
    Result<void> write(std::span<const Row> rows);

private:
    RowStore() = default;
    Result<void> open_environment(const RowStoreOptions& options);
    Result<void> load(const RowStoreOptions& options);
    void cover_pages();

    std::string directory_;
    std::string noun_;
    MDB_env* environment_ = nullptr;
    unsigned database_ = 0;
    bool afresh_ = false;
};

}  // namespace larder
