#pragma once

// The index's LMDB environment: its format, how it is opened and checked, and how a group of changes is committed. No
// threads, no queue: those are the Index's (cache/store/index.h). One environment per process, never used across fork.
//
//   database "blocks":   key {dataset u64, segment u32, offset/64 u32} -> {block_id, payload_bytes, payload_crc, crc}
//   (of a compressed block {block_id, payload_bytes, payload_crc, raw_bytes, crc})
//   database "segments": key {dataset u64, segment u32} -> {size u64, alignment u32, sealed u32, reserved u32, crc}
//   database "state":    key "next_segment" -> {id u32, crc}
//
// Keys are big-endian, values little-endian; `crc` is the CRC32C of the key followed by the value before it, because
// LMDB hands out flipped bytes as good ones. The rows are keyed by place, not by block: blocks arrive in random order,
// and this way an insert goes to the end of its segment's rows instead of dirtying a random page, a dropped segment is
// one range, and loading gives each segment's blocks in order. The look-up by block is the store's table in memory.

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

// Checks every page and row of the environment in `directory` by plain reads, as LMDB trusts its file: a truncated one
// kills its reader, a flipped bit its writer. What is wrong with it, in words; nothing when it is sound or missing.
std::optional<std::string> find_index_damage(const std::string& directory);

class IndexEnvironment {
public:
    static Result<std::unique_ptr<IndexEnvironment>> open(const std::string& directory, std::uint64_t map_bytes);
    ~IndexEnvironment();
    IndexEnvironment(const IndexEnvironment&) = delete;
    IndexEnvironment& operator=(const IndexEnvironment&) = delete;

    std::uint32_t next_segment() const { return next_segment_; }

    // Durable when it returns well; else some or all of the changes are lost.
    Result<void> commit(std::span<const IndexChange> changes, std::uint32_t next_segment);
    // After this the environment takes no more commits: LMDB found its file inconsistent.
    bool broken() const { return broken_; }

    Result<std::vector<StoredSegment>> load(std::uint64_t dataset_id) const;
    // Frees the places of readers that died.
    void check_readers();

private:
    IndexEnvironment() = default;
    int apply(MDB_txn* transaction, const IndexChange& change, std::size_t& budget);
    void cover_last_page();

    MDB_env* environment_ = nullptr;
    unsigned blocks_ = 0;
    unsigned segments_ = 0;
    unsigned state_ = 0;
    std::uint32_t next_segment_ = 1;
    std::uint32_t next_segment_stored_ = 0;
    bool broken_ = false;
};

}  // namespace larder::cache
