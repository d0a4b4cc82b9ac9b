#pragma once

// Puts datasets into service: recovers at start what the previous run left, gives each dataset to a shard, and retries
// datasets whose remote could not be reached. Remotes are looked for on threads of their own, since a mount may hang:
// at start for a few seconds, then the node starts without these datasets. Control thread only, unless noted.

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/server/blocking_calls.h"
#include "cache/control/daemon_config.h"
#include "cache/control/datasets.h"
#include "cache/control/work_thread.h"
#include "cache/remote/http_transfers.h"
#include "cache/shard/shard_thread.h"
#include "cache/store/index.h"

namespace larder::cache {

class Serving {
public:
    // The parts that a Serving works with. They must outlive the Serving. `memory` unmaps dropped memory segments.
    struct Place {
        const DaemonConfig& config;
        const Clock& clock;
        Datasets& datasets;
        ShardThreads& shards;
        HttpTransfers& transfers;
        Index& index;
        WorkThread& memory;
        boost::asio::io_context& control;
    };
    explicit Serving(const Place& place);

    static constexpr std::int64_t kOpenAtStart_ns = 5'000'000'000;

    // Recovers the contents of the state directory; blocks until done, and waits kOpenAtStart_ns at most for remotes.
    // Call it before `control` runs on another thread.
    Result<void> load();
    ShardThread& least_loaded() const;
    // Makes the store on the dataset's shard from the recovered segments, and starts serving the dataset, whose place
    // is known and `reached`. Waits for one turn of the shard.
    void hand_over(NodeDataset& dataset, const Result<RemotePlace::Reached>& reached);
    // Call it about once a second.
    void retry_offline();

private:
    // The result of looking for a dataset's remote.
    struct Found {
        std::shared_ptr<const RemotePlace> place;  // null: it could not be opened
        Result<RemotePlace::Reached> reached;
    };

    Result<void> load_dataset(DatasetRecord record);
    // Looks for the remote on another thread, then hands the dataset over.
    void open(NodeDataset& dataset);
    void take_found(const std::string& name, std::uint64_t dataset_id, const Found& found);
    void set_offline(NodeDataset& dataset, Error why);
    void remove_orphan_segments();

    const DaemonConfig& config_;
    const Clock& clock_;
    Datasets& datasets_;
    ShardThreads& shards_;
    HttpTransfers& transfers_;
    Index& index_;
    WorkThread& memory_;
    boost::asio::io_context& control_;
    std::int64_t offline_retry_ns_ = 0;
    BlockingCalls calls_;
};

}  // namespace larder::cache
