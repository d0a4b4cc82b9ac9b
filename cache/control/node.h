#pragma once

// The node: makes the parts of the control plane, connects them, and ends them in the right order. It applies a config
// to all parts, and does their periodic work. Each part has a subject of its own:
//   Datasets       which datasets there are, and their records     Indexing       adding and indexing datasets
//   Serving        recovering datasets and giving them to shards   Scans          warming and verifying them
//   OldVersions    dropping old versions of datasets               NodeSessions   what the handshake asks for
//   Quotas         the cache that each dataset may use             LimitSettings  job limits set through the API
//   ShardThreads   the data plane and its statistics               JobLimits      the bandwidth of each job
//   Peers          sharing cached blocks with other nodes          Tasks          long work, and its progress
//   UserDirectory  users and groups of the machine                 Warming        what the allocator wants warmed
//   BlockTraces    what happens to a job's blocks, on request
// Unless noted, call everything on the control thread. None of these calls blocks: results that need the data plane or
// a disk come through a callback, also on the control thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "cache/control/block_traces.h"
#include "cache/control/daemon_config.h"
#include "cache/control/datasets.h"
#include "cache/control/disk_reports.h"
#include "cache/control/indexing.h"
#include "cache/control/job_limits.h"
#include "cache/control/limit_settings.h"
#include "cache/control/node_sessions.h"
#include "cache/control/quotas.h"
#include "cache/control/rate_meter.h"
#include "cache/control/scans.h"
#include "cache/control/serving.h"
#include "cache/control/tasks.h"
#include "cache/control/user_directory.h"
#include "cache/control/versions.h"
#include "cache/control/warming.h"
#include "cache/control/work_thread.h"
#include "cache/peers/peers.h"
#include "cache/remote/http_transfers.h"
#include "cache/shard/shard_thread.h"
#include "cache/store/index.h"

namespace boost::asio {
class io_context;
}

namespace larder::cache {

// Checks the datasets that a config declares as Node::apply will, without adding them: URLs, users, groups.
Result<void> check_config_datasets(const DaemonConfig& config);

class Node {
public:
    // Recovers the contents of the state directory; blocks until done. `control` is the control thread's, and must
    // outlive the node.
    static Result<std::unique_ptr<Node>> start(const DaemonConfig& config, boost::asio::io_context& control);
    ~Node();

    // Ends tasks, sessions and data plane, then saves the index; blocks until done. Call it after the control thread
    // has ended.
    void stop();

    // Applies the quotas and job limits of a config, and adds its new datasets. Applies all quotas or none. Once
    // the control thread runs, give users and groups by number (look_up_users).
    Result<void> apply(const DaemonConfig& config);
    // Call it about once a second.
    void run_periodic_work();

    const DaemonConfig& config() const { return config_; }
    std::int64_t now_ns() const { return clock_.now_ns(); }
    Datasets& datasets() { return *datasets_; }
    Quotas& quotas() { return *quotas_; }
    Indexing& indexing() { return *indexing_; }
    Scans& scans() { return *scans_; }
    Warming& warming() { return *warming_; }
    NodeSessions& sessions() { return *sessions_; }
    LimitSettings& limit_settings() { return *limit_settings_; }
    // Saves what the allocator promised (promised_floor.h), then calls `done` on the control thread.
    void save_promised_floor(double bytes_per_second, std::function<void(Result<void>)> done);
    JobLimits& job_limits() { return job_limits_; }
    UserDirectory& users() { return users_; }
    Tasks& tasks() { return tasks_; }
    ShardThreads& shards() { return *shards_; }
    BlockTraces& traces() { return *traces_; }
    // Null if this node neither serves nor reads peers.
    Peers* peers() { return peers_.get(); }
    const RateMeter& rates() const { return rates_; }
    IndexStatus index_status() const { return index_->status(); }
    // The problems of this node's own disks, a line each. All else is served.
    std::vector<std::string> problems() const;
    HttpStatistics http_statistics() const { return transfers_->statistics(); }
    // Remotes that do not answer at present.
    std::vector<HttpOutage> outages() const { return transfers_->outages(); }

private:
    Node(const DaemonConfig& config, boost::asio::io_context& control);
    Result<void> open_index();
    Result<void> start_transfers();
    Result<void> start_shards();
    void make_parts();
    bool uses_peers() const;
    Result<void> start_peers();
    void send_datasets_to_peers();

    DaemonConfig config_;
    SteadyClock clock_;
    boost::asio::io_context& control_;
    RateMeter rates_;
    DiskReports disk_reports_;
    std::unique_ptr<Index> index_;
    std::string index_problem_;                 // why the index is not used at all; empty: it is
    std::unique_ptr<HttpTransfers> transfers_;  // outlives its readers
    std::unique_ptr<HttpTransfers> peer_transfers_;
    std::unique_ptr<ShardThreads> shards_;
    std::unique_ptr<BlockTraces> traces_;
    std::unique_ptr<Peers> peers_;        // destroyed before the shards
    std::unique_ptr<WorkThread> files_;   // writes state files in order
    std::unique_ptr<WorkThread> memory_;  // unmaps dropped memory segments
    Tasks tasks_;
    UserDirectory users_;
    JobLimits job_limits_;
    std::unique_ptr<LimitSettings> limit_settings_;
    std::unique_ptr<Datasets> datasets_;
    std::unique_ptr<Serving> serving_;
    std::unique_ptr<OldVersions> old_versions_;
    std::unique_ptr<Quotas> quotas_;
    std::unique_ptr<Indexing> indexing_;
    std::unique_ptr<Scans> scans_;
    std::unique_ptr<Warming> warming_;
    std::unique_ptr<NodeSessions> sessions_;
};

}  // namespace larder::cache
