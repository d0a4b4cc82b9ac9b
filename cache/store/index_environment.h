#pragma once

// The index's LMDB environment: its format, how it is opened and checked, and how a group of changes is committed. The
// threads and the queue are the Index's (cache/store/index.h). One environment per process, never used across fork.
//
//   database "blocks":   key {dataset u64, segment u32, offset/64 u32} -> {block_id, payload_bytes, payload_crc, crc}
//                        (for a compressed block {block_id, payload_bytes, payload_crc, raw_bytes, crc};
//                        block_id 0xffffffff: the block was dropped, its record still takes up payload_bytes;
//                        0xfffffffe: the disk cannot write or read this record, nothing is written there again)
//   database "segments": key {dataset u64, segment u32} -> {size u64, alignment u32, sealed u32, reserved u32, crc}
//   database "state":    key "next_segment" -> {id u32, crc}
//
// Keys are big-endian, values little-endian; `crc` is the CRC32C of the key followed by the value before `crc`, because
// LMDB does not detect flipped bytes. See cache/store/index.h for why rows are keyed by place.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/store/stored_block.h"

struct MDB_env;
struct MDB_txn;

namespace larder::cache {

struct IndexChange {
    enum class Kind : std::uint8_t { put_block, remove_block, put_segment, remove_segment, remove_dataset };
    Kind kind = Kind::put_block;
    bool sealed = false;
    std::uint32_t alignment = 0;
    std::uint32_t segment = 0;
    std::uint64_t dataset_id = 0;
    std::uint64_t size_bytes = 0;
    StoredBlock block;
};

// Checks the environment in `directory` in a process of its own (base/server/lmdb_check.h). Returns a description of
// the damage, or nothing if the environment is sound or missing. With `renew`, also writes the rows to a new file,
// which replaces the old one (LmdbCheckOptions::renew). IndexEnvironment::open() checks the rows' CRCs.
Result<std::optional<std::string>> find_index_damage(const std::string& directory, bool renew = false);

class IndexEnvironment {
public:
    // Checks the CRC of every row. The error `corrupt` means that the environment is damaged.
    static Result<std::unique_ptr<IndexEnvironment>> open(const std::string& directory, std::uint64_t map_bytes);
    ~IndexEnvironment();
    IndexEnvironment(const IndexEnvironment&) = delete;
    IndexEnvironment& operator=(const IndexEnvironment&) = delete;

    std::uint32_t next_segment() const { return next_segment_; }

    // The changes are durable on success. On failure some or all of them are lost.
    Result<void> commit(std::span<const IndexChange> changes, std::uint32_t next_segment);
    // True if LMDB found its file inconsistent. The environment takes no more commits then.
    bool broken() const { return broken_; }

    Result<std::vector<StoredSegment>> load(std::uint64_t dataset_id) const;
    // Frees the reader slots of processes that died.
    void check_readers();

private:
    IndexEnvironment() = default;
    int apply(MDB_txn* transaction, const IndexChange& change, std::size_t& budget);
    int check_rows(MDB_txn* transaction) const;
    void grow_file_over_pages();

    MDB_env* environment_ = nullptr;
    unsigned blocks_ = 0;
    unsigned segments_ = 0;
    unsigned state_ = 0;
    std::uint32_t next_segment_ = 1;
    std::uint32_t next_segment_stored_ = 0;
    bool broken_ = false;
};

}  // namespace larder::cache
