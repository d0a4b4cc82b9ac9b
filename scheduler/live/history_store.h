#pragma once

// The queue and its history across restarts and power cuts: rows of JSON (base/server/row_store.h). A row is rewritten
// whole when its job changes. One process at a time has it. Changes are written on a thread of its own.
//
//   queue                {"id", "first"}: the queue's identity, drawn when the queue is made, and the first number
//   given
//                        under it; jobs before are of an older version, which had no identities; since version 2
//   numbers              {"last"}: the highest number given; since version 2
//   job/NUMBER           a job's record, in twenty digits so that they come in their order
//   tenant/NAME          {"interval", "gpu_s_by_interval"}: its account of GPU time
//
// A number is given once, even if the queue is lost: the file `job-numbers` beside it says up to which number jobs may
// have been acknowledged, and is written before they are.

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/server/row_store.h"
#include "base/server/row_writer.h"
#include "scheduler/live/live_scheduler.h"

namespace larder::scheduler {

struct HistoryStoreOptions {
    std::string directory;               // the rows are in its queue/; made if missing
    std::vector<std::string> gpu_types;  // of the cluster
    JobId number_seen = 0;               // a new queue's numbers start above it
};

class HistoryStore {
public:
    using Done = RowWriter::Done;

    // already_exists: another process has it.
    static Result<std::unique_ptr<HistoryStore>> open(HistoryStoreOptions options);
    ~HistoryStore();

    const LiveRecord& found() const { return found_; }
    // Where and how LocalEngineOptions take them.
    const std::string& identity() const { return identity_; }
    JobId first_number() const { return first_; }

    // `done` is called on another thread, when all of the change survives a power cut or, with the error, nothing of it
    // is on record. In the order of calls; those that wait for the disk together are written together.
    void save(const LiveRecord& change, Done done);

private:
    explicit HistoryStore(HistoryStoreOptions options) : options_(std::move(options)) {}
    Result<void> take(std::string_view key, std::string_view text);
    Result<void> give_identity();
    // On the writer's thread.
    Result<void> commit(std::span<const Row> rows);
    std::string numbers_path() const { return options_.directory + "/job-numbers"; }

    HistoryStoreOptions options_;
    FileDescriptor lock_;
    std::string identity_;  // empty: none was found
    JobId first_ = 1;
    JobId last_ = 0;
    JobId reserved_ = 0;  // up to which `job-numbers` says; the writer's
    LiveRecord found_;
    std::unique_ptr<RowStore> rows_;
    std::unique_ptr<RowWriter> writer_;
};

}  // namespace larder::scheduler
