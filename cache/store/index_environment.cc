#include "cache/store/index_environment.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/assert.h"
#include "base/server/lmdb_check.h"
#include "cache/store/index_databases.h"
#include "cache/store/index_rows.h"

namespace larder::cache {
namespace {

// The most changes in one LMDB transaction: each may dirty a page, and LMDB limits dirty pages.
constexpr std::size_t kTransactionChangesMax = 50'000;

template <typename Row>
int put_row(MDB_txn* transaction, unsigned database, std::span<const unsigned char> key_bytes, Row row) {
    row.crc = row_crc(key_bytes, row);
    MDB_val key = lmdb_value(key_bytes);
    MDB_val value{sizeof row, &row};
    return mdb_put(transaction, database, &key, &value, 0);
}

// Closes the cursor at the end of its scope.
struct Cursor {
    Cursor(MDB_txn* transaction, unsigned database) : code(mdb_cursor_open(transaction, database, &cursor)) {}
    ~Cursor() {
        if (cursor != nullptr) mdb_cursor_close(cursor);
    }
    Cursor(const Cursor&) = delete;
    Cursor& operator=(const Cursor&) = delete;
    // Moves to the first row at or after `prefix` (MDB_SET_RANGE), to the first row of all (MDB_FIRST), or to the next
    // row (MDB_NEXT). False past the rows of `prefix` or on an error, which is in `code`.
    bool get(MDB_cursor_op operation, std::span<const unsigned char> prefix) {
        if (code != 0) return false;
        if (operation == MDB_SET_RANGE) key = lmdb_value(prefix);
        code = mdb_cursor_get(cursor, &key, &value, operation);
        if (code == MDB_NOTFOUND) {
            code = 0;
            return false;
        }
        if (code != 0 || key.mv_size < prefix.size()) return false;
        return std::ranges::equal(lmdb_bytes(key).first(prefix.size()), prefix);
    }

    MDB_cursor* cursor = nullptr;
    MDB_val key{};
    MDB_val value{};
    int code = 0;
};

// Deletes rows that begin with `prefix` while `budget` lasts.
int remove_range(MDB_txn* transaction, unsigned database, std::span<const unsigned char> prefix, std::size_t& budget) {
    Cursor cursor(transaction, database);
    for (bool found = cursor.get(MDB_SET_RANGE, prefix); found && budget > 0; found = cursor.get(MDB_NEXT, prefix)) {
        if (const int code = mdb_cursor_del(cursor.cursor, 0); code != 0) return code;
        budget--;
    }
    return cursor.code;
}

template <typename Row, std::size_t key_bytes>
bool is_valid_row(std::span<const unsigned char> key, std::span<const unsigned char> value) {
    return key.size() == key_bytes && read_row<Row>(key, value).has_value();
}

bool is_valid_block_row(std::span<const unsigned char> key, std::span<const unsigned char> value) {
    return key.size() == IndexKey::kBlockBytes && read_block_row(key, value).has_value();
}

}  // namespace

Result<std::optional<std::string>> find_index_damage(const std::string& directory, bool renew) {
    const std::array<std::string_view, kIndexDatabases> databases{kBlocksDatabase, kSegmentsDatabase, kStateDatabase};
    return find_lmdb_damage(directory, databases, {.renew = renew});
}

IndexEnvironment::~IndexEnvironment() {
    mdb_env_close(environment_);
}

Result<std::unique_ptr<IndexEnvironment>> IndexEnvironment::open(const std::string& directory,
                                                                 std::uint64_t map_bytes) {
    std::unique_ptr<IndexEnvironment> opened(new IndexEnvironment);
    MDB_txn* transaction = nullptr;
    const auto abort_on_error = [&](int code) {
        if (code != 0 && transaction != nullptr) mdb_txn_abort(std::exchange(transaction, nullptr));
        return code;
    };
    const auto failed = [&](int code) { return std::unexpected(lmdb_error(code, "open the index in " + directory)); };

    if (const int code = mdb_env_create(&opened->environment_); code != 0) return failed(code);
    MDB_env* environment = opened->environment_;
    if (const int code = mdb_env_set_mapsize(environment, map_bytes); code != 0) return failed(code);
    if (const int code = mdb_env_set_maxdbs(environment, kIndexDatabases); code != 0) return failed(code);
    if (const int code = mdb_env_open(environment, directory.c_str(), MDB_NOTLS, 0600); code != 0) return failed(code);
    opened->check_readers();

    if (const int code = mdb_txn_begin(environment, nullptr, 0, &transaction); code != 0) return failed(code);
    const std::pair<const char*, unsigned*> databases[] = {{kBlocksDatabase, &opened->blocks_},
                                                           {kSegmentsDatabase, &opened->segments_},
                                                           {kStateDatabase, &opened->state_}};
    for (const auto& [database, handle] : databases) {
        const int code = abort_on_error(mdb_dbi_open(transaction, database, MDB_CREATE, handle));
        if (code != 0) return failed(code);
    }
    if (const int code = abort_on_error(opened->check_rows(transaction)); code != 0) {
        if (code != MDB_CORRUPTED) return failed(code);
        return fail(ErrorCode::corrupt, "open the index in " + directory + ": a row does not match its CRC");
    }
    MDB_val key = lmdb_value(kNextSegmentKey);
    MDB_val value{};
    const int code = mdb_get(transaction, opened->state_, &key, &value);
    if (code == 0) {
        const auto row = read_row<StateRow>(kNextSegmentKey, lmdb_bytes(value));
        if (!row) return failed(abort_on_error(MDB_CORRUPTED));
        opened->next_segment_ = opened->next_segment_stored_ = row->value;
    } else if (code != MDB_NOTFOUND) {
        return failed(abort_on_error(code));
    }
    if (const int committed = mdb_txn_commit(transaction); committed != 0) return failed(committed);
    opened->grow_file_over_pages();
    return opened;
}

// Returns MDB_CORRUPTED if a row is not as it was written.
int IndexEnvironment::check_rows(MDB_txn* transaction) const {
    const auto check = [&](unsigned database, const auto& is_valid) {
        Cursor rows(transaction, database);
        for (bool found = rows.get(MDB_FIRST, {}); found; found = rows.get(MDB_NEXT, {})) {
            if (!is_valid(lmdb_bytes(rows.key), lmdb_bytes(rows.value))) return MDB_CORRUPTED;
        }
        return rows.code;
    };
    int code = check(blocks_, is_valid_block_row);
    if (code == 0) code = check(segments_, is_valid_row<SegmentRow, IndexKey::kSegmentBytes>);
    if (code == 0) code = check(state_, is_valid_row<StateRow, sizeof kNextSegmentKey>);
    return code;
}

int IndexEnvironment::apply(MDB_txn* transaction, const IndexChange& change, std::size_t& budget) {
    using Kind = IndexChange::Kind;
    const std::uint32_t offset_units = change.block.offset_units;
    const IndexKey key(change.dataset_id, change.segment, offset_units);
    const std::span<const unsigned char> block_key(key.bytes);
    const auto segment_key = block_key.first(IndexKey::kSegmentBytes);
    const auto dataset_key = block_key.first(IndexKey::kDatasetBytes);
    budget--;
    switch (change.kind) {
        case Kind::put_block:
            if (change.block.raw_bytes > 0) {
                return put_row(transaction, blocks_, block_key,
                               CompressedBlockRow{.block_id = change.block.block_id,
                                                  .payload_bytes = change.block.payload_bytes,
                                                  .payload_crc = change.block.payload_crc,
                                                  .raw_bytes = change.block.raw_bytes,
                                                  .crc = 0});
            }
            return put_row(transaction, blocks_, block_key,
                           BlockRow{.block_id = change.block.block_id,
                                    .payload_bytes = change.block.payload_bytes,
                                    .payload_crc = change.block.payload_crc,
                                    .crc = 0});
        case Kind::put_segment:
            return put_row(transaction, segments_, segment_key,
                           SegmentRow{.size_bytes = change.size_bytes,
                                      .alignment = change.alignment,
                                      .sealed = change.sealed,
                                      .reserved = 0,
                                      .crc = 0});
        case Kind::remove_block: return remove_range(transaction, blocks_, block_key, budget);
        case Kind::remove_segment:
        case Kind::remove_dataset: {
            const auto prefix = change.kind == Kind::remove_segment ? segment_key : dataset_key;
            const int code = remove_range(transaction, blocks_, prefix, budget);
            return code != 0 ? code : remove_range(transaction, segments_, prefix, budget);
        }
    }
    return 0;
}

Result<void> IndexEnvironment::commit(std::span<const IndexChange> changes, std::uint32_t next_segment) {
    const auto failed = [&](int code) {
        broken_ = broken_ || lmdb_damaged(code);
        return std::unexpected(lmdb_error(code, "commit to the index"));
    };
    while (!changes.empty() || next_segment != next_segment_stored_) {
        MDB_txn* transaction = nullptr;
        if (const int code = mdb_txn_begin(environment_, nullptr, 0, &transaction); code != 0) return failed(code);
        int code = 0;
        for (std::size_t budget = kTransactionChangesMax; code == 0 && !changes.empty() && budget > 0;) {
            code = apply(transaction, changes.front(), budget);
            // A change that used up the budget is applied again in the next transaction, in case rows are left.
            if (budget > 0) changes = changes.subspan(1);
        }
        if (code == 0) code = put_row(transaction, state_, kNextSegmentKey, StateRow{.value = next_segment, .crc = 0});
        if (code != 0) {
            mdb_txn_abort(transaction);
            return failed(code);
        }
        if (code = mdb_txn_commit(transaction); code != 0) return failed(code);
        next_segment_stored_ = next_segment;
        grow_file_over_pages();
    }
    return {};
}

void IndexEnvironment::grow_file_over_pages() {
    // If the file cannot grow, as on a full disk, the next start may take it for truncated and rebuild the index.
    static_cast<void>(grow_file_over_lmdb_pages(environment_));
}

Result<std::vector<StoredSegment>> IndexEnvironment::load(std::uint64_t dataset_id) const {
    MDB_txn* transaction = nullptr;
    if (const int code = mdb_txn_begin(environment_, nullptr, MDB_RDONLY, &transaction); code != 0) {
        return std::unexpected(lmdb_error(code, "read the index"));
    }
    const std::unique_ptr<MDB_txn, void (*)(MDB_txn*)> abort_at_end(transaction, mdb_txn_abort);
    const IndexKey range(dataset_id, 0, 0);
    const auto prefix = std::span<const unsigned char>(range.bytes).first(IndexKey::kDatasetBytes);
    const auto damaged = [] { return fail(ErrorCode::corrupt, "read the index: a row does not match its CRC"); };

    std::vector<StoredSegment> segments;
    Cursor segment(transaction, segments_);
    for (bool found = segment.get(MDB_SET_RANGE, prefix); found; found = segment.get(MDB_NEXT, prefix)) {
        const auto key = lmdb_bytes(segment.key);
        const auto row = read_row<SegmentRow>(key, lmdb_bytes(segment.value));
        if (!row || key.size() != IndexKey::kSegmentBytes) return damaged();
        segments.push_back({.id = index_key_number(key.data() + IndexKey::kDatasetBytes),
                            .alignment = row->alignment,
                            .size_bytes = row->size_bytes,
                            .sealed = row->sealed != 0,
                            .blocks = {}});
    }
    if (segment.code != 0) return std::unexpected(lmdb_error(segment.code, "read the index"));

    auto owner = segments.begin();
    Cursor block(transaction, blocks_);
    for (bool found = block.get(MDB_SET_RANGE, prefix); found; found = block.get(MDB_NEXT, prefix)) {
        const auto key = lmdb_bytes(block.key);
        const auto row = read_block_row(key, lmdb_bytes(block.value));
        if (!row || key.size() != IndexKey::kBlockBytes) return damaged();
        const std::uint32_t id = index_key_number(key.data() + IndexKey::kDatasetBytes);
        while (owner != segments.end() && owner->id < id) ++owner;
        // A block whose segment has no row belongs to a dropped segment.
        if (owner == segments.end() || owner->id != id) continue;
        owner->blocks.push_back({.offset_units = index_key_number(key.data() + IndexKey::kSegmentBytes),
                                 .block_id = row->block_id,
                                 .payload_bytes = row->payload_bytes,
                                 .payload_crc = row->payload_crc,
                                 .raw_bytes = row->raw_bytes});
    }
    if (block.code != 0) return std::unexpected(lmdb_error(block.code, "read the index"));
    return segments;
}

void IndexEnvironment::check_readers() {
    int dead = 0;
    mdb_reader_check(environment_, &dead);
}

}  // namespace larder::cache
