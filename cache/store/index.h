#pragma once

// The index records, across restarts, which disk segments each dataset has and where in them each block lies. The whole
// node has one LMDB environment and one writer thread. Data-plane threads post changes under a short lock, and
// the writer commits them in groups. Losing the index, or any part of it, loses no data, because segments describe
// themselves (cache/store/recovery.h). So the index never stops serving: if LMDB fails, changes are dropped and
// counted, and the status says why.
//
// Rows are keyed (dataset, segment, offset), not (dataset, block): blocks arrive in random order, and this way an
// insert goes to the end of its segment's rows instead of dirtying a random page, a dropped segment is one range, and
// loading gives each segment's blocks in order. The look-up by block is the store's table in memory.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cache/store/index_environment.h"
#include "cache/store/stored_block.h"

namespace larder::cache {

struct IndexOptions {
    std::string directory;  // made if missing; its parent must exist. Empty: nothing persists
    std::uint64_t map_bytes = std::uint64_t{64} << 30;  // address space, not memory or disk
    std::int64_t commit_after_ms = 200;
    std::size_t commit_changes_max = 16384;                  // a group this large does not wait
    std::size_t pending_changes_max = std::size_t{1} << 20;  // above this, changes are dropped and counted
};

struct IndexStatus {
    bool persisting = true;
    std::string problem;  // of the last commit; empty if it succeeded
    std::uint64_t commits = 0;
    std::uint64_t changes_committed = 0;
    std::uint64_t changes_lost = 0;
};

class Index {
public:
    // The result of opening, for the log.
    struct OpenReport {
        bool created = false;  // no index existed
        bool rebuilt = false;  // an empty environment replaces a damaged one, which was moved aside
        std::string reason;
        std::string damaged_directory;  // where the damaged environment was moved to
    };
    struct Opened {
        std::unique_ptr<Index> index;
        OpenReport report;
    };
    // Checks the environment first and moves a damaged one aside. Fails only if no environment can be opened at all
    // (permissions, no space).
    static Result<Opened> open(IndexOptions options);
    ~Index();  // flushes

    // Returns a new segment id, for either tier. Ids are unique on the node and never reused. Any thread.
    std::uint32_t allocate_segment_id();
    // Marks the ids below `next` as taken (a scan found them on disk).
    void reserve_segment_ids_below(std::uint32_t next);

    // Post changes, which are committed in the order posted. Any thread; never block on LMDB.
    void put_segment(std::uint64_t dataset_id, std::uint32_t segment, std::uint64_t size_bytes, std::uint32_t alignment,
                     bool sealed);
    void remove_segment(std::uint64_t dataset_id, std::uint32_t segment);  // with its blocks
    void put_block(std::uint64_t dataset_id, std::uint32_t segment, const StoredBlock& block);
    void remove_block(std::uint64_t dataset_id, std::uint32_t segment, std::uint32_t offset_units);
    void remove_dataset(std::uint64_t dataset_id);

    // Waits until every change posted before is committed or lost.
    void flush();

    // The committed segments of a dataset and their blocks, by ascending segment id. Blocking.
    Result<std::vector<StoredSegment>> load(std::uint64_t dataset_id) const;

    IndexStatus status() const;

private:
    Index(IndexOptions options, std::unique_ptr<IndexEnvironment> environment, FileDescriptor wake);
    Result<void> start();
    void post(const IndexChange& change);
    void wake();
    void sleep(std::int64_t ms_max);
    void write_loop();
    void commit(const std::vector<IndexChange>& changes);

    IndexOptions options_;
    std::unique_ptr<IndexEnvironment> environment_;  // null: nothing persists
    std::atomic<std::uint32_t> next_segment_id_{1};

    FileDescriptor wake_;  // an eventfd: the writer sleeps on it
    mutable std::mutex mutex_;
    std::condition_variable committed_;
    std::vector<IndexChange> pending_;
    std::uint64_t posted_count_ = 0;
    std::uint64_t committed_count_ = 0;
    bool flush_requested_ = false;
    bool stop_ = false;
    IndexStatus status_;
    std::thread writer_;
};

}  // namespace larder::cache
