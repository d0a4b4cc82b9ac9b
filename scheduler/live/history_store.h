#pragma once

// Keeps the queue and its history across restarts and power cuts, as rows of JSON (base/server/row_store.h). A row is
// rewritten whole when its job changes. One process at a time may have the store open. A thread of its own writes the
// changes.
//
//   queue                {"id", "first"}: the queue's random identity, and the first number given under it; lower
//                        numbers are from an older version, which had no identities; since version 2
//   numbers              {"last"}: the highest number given; since version 2
//   drained-node/NAME    {"by", "since_unix_s"}: a node that an operator has drained; since version 4
//   job/NUMBER           a job's record; NUMBER has twenty digits, so that rows sort by number
//   agent-node/NAME      {"gpus", "gpu_type", "labels"}: a node that only the cluster manager knows; since version 3
//   tenant/NAME          {"interval", "gpu_s_by_interval"}: the tenant's GPU time
//
// A number is never given twice, even if the queue is lost: the file `job-numbers` beside it has the highest number
// that may have been acknowledged. It is written before the acknowledgement.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/server/etcd_move.h"
#include "base/server/row_store.h"
#include "base/server/row_writer.h"
#include "scheduler/live/live_scheduler.h"

namespace larder::scheduler {

struct HistoryStoreOptions {
    std::string directory;  // the rows are in its subdirectory queue/; made if missing
    // Opens the rows that several allocators share, in place of those in the directory; empty: they are not shared.
    OpenRows shared_rows;
    std::vector<std::string> gpu_types;  // of the cluster; those of found nodes are added
    JobId number_seen = 0;               // a new queue's numbers start above it
};

class HistoryStore {
public:
    using Done = RowWriter::Done;

    // already_exists: another process has the store open.
    static Result<std::unique_ptr<HistoryStore>> open(HistoryStoreOptions options);
    ~HistoryStore();

    // The queue of a directory, as rows that open() finds in etcd. If the queue is lost, these are its numbers only.
    struct ToMove {
        FileDescriptor lock;  // no allocator can open the queue meanwhile; null if there is none
        std::optional<MovedRows> queue;
    };
    // Errors: already_exists if another process has the store open; corrupt if it is damaged.
    static Result<ToMove> read_to_move(const std::string& directory);

    const LiveRecord& found() const { return found_; }
    // For engines, which must not take attempts of another queue for ours.
    const std::string& identity() const { return identity_; }
    JobId first_number() const { return first_; }

    // Calls `done` on another thread once all of the change survives a power cut or, with an error, none of it is on
    // record. With shared rows an error may come true later (RowStore::write). Changes are written in the order of
    // calls; those that wait for the disk are written together.
    void save(LiveRecord change, Done done);

private:
    explicit HistoryStore(HistoryStoreOptions options) : options_(std::move(options)) {}
    Result<void> load_row(std::string_view key, std::string_view text);
    Result<void> set_identity();
    // Runs on the writer's thread.
    Result<void> commit(std::span<const Row> rows);

    HistoryStoreOptions options_;
    FileDescriptor lock_;
    std::string identity_;  // empty: none was found
    JobId first_ = 1;
    JobId last_ = 0;
    JobId reserved_ = 0;  // the number in `job-numbers`; used by the writer's thread
    LiveRecord found_;
    std::unique_ptr<RowStore> rows_;
    std::unique_ptr<RowWriter> writer_;
};

}  // namespace larder::scheduler
