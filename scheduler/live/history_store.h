#pragma once

// The queue and its history across restarts: rows of JSON (base/server/row_store.h). A row is rewritten whole when its
// job changes. One process at a time has it.
//
//   job/NUMBER           a job's record, in twenty digits so that they come in their order
//   tenant/NAME          {"interval", "gpu_s_by_interval"}: its account of GPU time

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/server/row_store.h"
#include "scheduler/live/live_scheduler.h"

namespace larder::scheduler {

class HistoryStore {
public:
    // Rows are in queue/ of `directory`, which is made if missing. `gpu_types`: those of the cluster. already_exists:
    // another process has it.
    static Result<std::unique_ptr<HistoryStore>> open(const std::string& directory, std::vector<std::string> gpu_types);

    const LiveRecord& found() const { return found_; }
    Result<void> save(const LiveRecord& change);

private:
    HistoryStore() = default;
    Result<void> take(std::string_view key, std::string_view text);

    FileDescriptor lock_;
    std::vector<std::string> gpu_types_;
    LiveRecord found_;
    std::unique_ptr<RowStore> rows_;
};

}  // namespace larder::scheduler
