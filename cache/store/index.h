#pragma once

// What the node remembers across restarts: for each dataset, which disk segments it has and where in them each block
// lies. One LMDB environment and one writer thread for the whole node; data-plane threads post changes, which cost them
// a short lock, and the writer commits them in groups. Losing the index, or any part of it, loses no data: segments
// describe themselves (cache/store/recovery.h). So nothing here ever stops serving: when LMDB fails, changes are
// dropped, counted, and the status says why.
//
// Rows are keyed (dataset, segment, offset), not (dataset, block): blocks arrive in random order, and this way an
// insert goes to the end of its segment's rows instead of dirtying a random page, a dropped segment is one range, and
// loading gives each segment's blocks in order. The look-up by block is the store's table in memory.
//
//   database "blocks":   key {dataset u64, segment u32, offset/64 u32} -> {block_id, payload_bytes, payload_crc, crc}
//   database "segments": key {dataset u64, segment u32} -> {size u64, alignment u32, sealed u32, crc}
//   database "state":    key "next_segment" -> {u32, crc}
// Keys are big-endian; values little-endian, `crc` being the CRC32C of the key and the value before it.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace larder::cache {

struct IndexedBlock {
    std::uint64_t offset;  // of the record in its segment, a multiple of 64
    std::uint32_t block_id;
    std::uint32_t payload_bytes;
    std::uint32_t payload_crc;
};

struct IndexedSegment {
    std::uint32_t id = 0;
    std::uint32_t alignment = 0;
    std::uint64_t size_bytes = 0;
    bool sealed = false;
    std::vector<IndexedBlock> blocks;  // ascending in offset
};

struct IndexOptions {
    std::string directory;  // made if missing; its parent must exist. Empty: nothing persists
    std::uint64_t map_bytes = std::uint64_t{64} << 30;  // address space, not memory or disk
    std::int64_t commit_after_ms = 200;
    std::size_t commit_changes_max = 16384;                  // a group this large does not wait
    std::size_t pending_changes_max = std::size_t{1} << 20;  // beyond, changes are dropped and counted
};

struct IndexStatus {
    bool persisting = true;
    std::string problem;  // of the last commit; empty when it went well
    std::uint64_t commits = 0;
    std::uint64_t changes_committed = 0;
    std::uint64_t changes_lost = 0;
};

class Index {
public:
    // How opening went, for the log.
    struct OpenReport {
        bool rebuilt = false;  // the environment was damaged and put aside: an empty one takes its place
        std::string reason;
        std::string damaged_directory;  // where the damaged one went
    };
    struct Opened {
        std::unique_ptr<Index> index;
        OpenReport report;
    };
    // Checks the environment in a child process first: a damaged LMDB file can kill its reader. An error only where
    // no environment can be had at all (permissions, no space).
    static Result<Opened> open(IndexOptions options);
    ~Index();  // flushes

    // Ids of segments, memory ones too: unique on the node and never reused. Any thread.
    std::uint32_t allocate_segment_id();
    // Ids below `next` are taken (found on disk by a scan).
    void segment_ids_from(std::uint32_t next);

    // Post changes; committed in the order posted. Any thread; never block on LMDB.
    void put_segment(std::uint64_t dataset_id, std::uint32_t segment, std::uint64_t size_bytes, std::uint32_t alignment,
                     bool sealed);
    void remove_segment(std::uint64_t dataset_id, std::uint32_t segment);  // with its blocks
    void put_block(std::uint64_t dataset_id, std::uint32_t segment, const IndexedBlock& block);
    void remove_block(std::uint64_t dataset_id, std::uint32_t segment, std::uint64_t offset);
    void remove_dataset(std::uint64_t dataset_id);

    // Waits until all that was posted before is committed, or lost.
    void flush();

    // Everything known of a dataset, rows with a bad CRC left out and counted. Blocking; sees what is committed.
    struct Contents {
        std::vector<IndexedSegment> segments;
        std::uint64_t rows_damaged = 0;
    };
    Result<Contents> load(std::uint64_t dataset_id) const;

    IndexStatus status() const;

private:
    struct Environment;
    struct Change;

    Index(IndexOptions options, std::unique_ptr<Environment> environment);
    void post(const Change& change);
    void write_loop();
    void commit(const std::vector<Change>& changes);

    IndexOptions options_;
    std::unique_ptr<Environment> environment_;  // null: nothing persists
    std::atomic<std::uint32_t> next_segment_id_{1};

    mutable std::mutex mutex_;
    std::condition_variable posted_;
    std::condition_variable committed_;
    std::vector<Change> pending_;
    std::uint64_t posted_count_ = 0;
    std::uint64_t committed_count_ = 0;
    bool hurry_ = false;
    bool stop_ = false;
    IndexStatus status_;
    std::thread writer_;
};

}  // namespace larder::cache
