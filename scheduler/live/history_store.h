#pragma once

// The queue and its history across restarts: rows of JSON (base/server/row_store.h) in the allocator's state directory,
// beside the cluster's own. A row is rewritten whole when its job changes.
//
//   job/NUMBER           a job's record, in twenty digits so that they come in their order
//   tenant/NAME          {"interval", "gpu_s_by_interval"}: its account of GPU time

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/server/row_store.h"
#include "scheduler/live/live_scheduler.h"

namespace larder::scheduler {

class HistoryStore {
public:
    // `directory` of its own, made if missing; its parent is there. `gpu_types`: those of the cluster.
    static Result<std::unique_ptr<HistoryStore>> open(const std::string& directory, std::vector<std::string> gpu_types);

    const LiveRecord& found() const { return found_; }
    Result<void> save(const LiveRecord& change);

private:
    HistoryStore() = default;
    Result<void> take(std::string_view key, std::string_view text);

    std::vector<std::string> gpu_types_;
    LiveRecord found_;
    std::unique_ptr<RowStore> rows_;
};

}  // namespace larder::scheduler
