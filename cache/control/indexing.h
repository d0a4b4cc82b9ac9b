#pragma once

// Adding datasets and indexing them again. Each runs as a task. A dataset becomes visible only once its record is on
// disk. Control thread only.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "cache/control/daemon_config.h"
#include "cache/control/datasets.h"
#include "cache/control/quotas.h"
#include "cache/control/serving.h"
#include "cache/control/tasks.h"
#include "cache/control/work_thread.h"
#include "cache/remote/http_transfers.h"

namespace larder::cache {

class Indexing {
public:
    // The parts that an Indexing works with. They must outlive the Indexing, and its tasks as far as those end.
    struct Place {
        const DaemonConfig& config;
        Datasets& datasets;
        Quotas& quotas;
        Serving& serving;
        Tasks& tasks;
        HttpTransfers& transfers;
        WorkThread& files;
        boost::asio::io_context& control;
    };
    explicit Indexing(const Place& place);

    // Each of these starts a task and returns its id. A dataset has at most one task at a time. `add` sets the record's
    // id and versions.
    Result<std::uint64_t> add(DatasetRecord record);
    // Reports what adding the dataset would find, without adding it.
    Result<std::uint64_t> survey(DatasetRecord record);
    Result<std::uint64_t> reindex(const std::string& name);

private:
    struct Run;

    Result<std::uint64_t> start(std::shared_ptr<Run> run, std::string kind);
    void finish_adding(const std::shared_ptr<Run>& run, Tasks::Outcome outcome,
                       const std::function<void(Tasks::Outcome)>& settle);
    void give_up_adding(const std::string& name, Tasks::Outcome failed,
                        const std::function<void(Tasks::Outcome)>& settle);
    void finish_reindexing(Run& run, Tasks::Outcome outcome, const std::function<void(Tasks::Outcome)>& settle);

    const DaemonConfig& config_;
    Datasets& datasets_;
    Quotas& quotas_;
    Serving& serving_;
    Tasks& tasks_;
    HttpTransfers& transfers_;
    WorkThread& files_;
    boost::asio::io_context& control_;
};

}  // namespace larder::cache
