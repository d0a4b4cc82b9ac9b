#pragma once

// Puts datasets into service: recovers at start what the previous run left, gives each dataset to a shard, and retries
// datasets whose remote could not be reached. Control thread only, unless noted.

#include <cstdint>

#include "base/clock.h"
#include "base/error.h"
#include "cache/control/daemon_config.h"
#include "cache/control/datasets.h"
#include "cache/control/work_thread.h"
#include "cache/remote/http_transfers.h"
#include "cache/shard/shard_thread.h"
#include "cache/store/index.h"

namespace larder::cache {

class Serving {
public:
    // The parts that a Serving works with. They must outlive the Serving. `files` runs work that blocks on the disk,
    // and `memory` unmaps dropped memory segments.
    struct Place {
        const DaemonConfig& config;
        const Clock& clock;
        Datasets& datasets;
        ShardThreads& shards;
        HttpTransfers& transfers;
        Index& index;
        WorkThread& files;
        WorkThread& memory;
        boost::asio::io_context& control;
    };
    explicit Serving(const Place& place);

    // Recovers the contents of the state directory; blocks until done.
    Result<void> load();
    ShardThread& least_loaded() const;
    // Makes the store on the dataset's shard from the recovered segments, and starts serving the dataset. Waits for one
    // turn of the shard.
    void hand_over(NodeDataset& dataset);
    // Call it about once a second.
    void retry_offline();

private:
    Result<void> load_dataset(DatasetRecord record);
    void remove_orphan_segments();

    const DaemonConfig& config_;
    const Clock& clock_;
    Datasets& datasets_;
    ShardThreads& shards_;
    HttpTransfers& transfers_;
    Index& index_;
    WorkThread& files_;
    WorkThread& memory_;
    boost::asio::io_context& control_;
    std::int64_t offline_retry_ns_ = 0;
};

}  // namespace larder::cache
