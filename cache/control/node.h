#pragma once

// The state and operations of the control plane: the node's datasets, their versions and quotas, the data-plane thread
// of each, the jobs' limits, and the tasks. The node admits sessions, starts indexing, changes quotas, and gathers the
// data plane's statistics. Unless noted, call everything on the control thread. None of these calls blocks: results
// that need the data plane or a disk come through a callback, also on the control thread.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "cache/control/catalog.h"
#include "cache/control/daemon_config.h"
#include "cache/control/dataset_request.h"
#include "cache/control/disk_reports.h"
#include "cache/control/handshake.h"
#include "cache/control/job_limits.h"
#include "cache/control/rate_meter.h"
#include "cache/control/tasks.h"
#include "cache/control/work_thread.h"
#include "cache/peers/peers.h"
#include "cache/remote/http_transfers.h"
#include "cache/remote/remote_place.h"
#include "cache/shard/shard_thread.h"
#include "cache/store/index.h"
#include "cache/store/recovery.h"

namespace larder::cache {

struct NodeDataset {
    DatasetRecord record;
    std::map<std::uint64_t, std::shared_ptr<const DatasetVersion>> versions;  // never empty
    ShardThread* shard = nullptr;
    std::map<std::uint64_t, std::int64_t> needed_ns;  // by version: when it was last the newest or read by a session
    std::vector<std::uint64_t> versions_cached;       // versions whose blocks stay cached; empty: not determined yet
    std::uint64_t task = 0;                           // the task that runs on this dataset; 0: none
    // True once the allocator has set the quota, or if no allocator needs to. The dataset's task reads it, too.
    std::shared_ptr<std::atomic<bool>> quota_assigned = std::make_shared<std::atomic<bool>>(false);
    // Why the dataset is offline: its remote could not be reached. Retried every 10 s.
    std::optional<Error> offline;
    std::shared_ptr<const RemotePlace> place;  // null: not opened yet
    std::vector<RecoveredSegment> segments;    // recovered segments of an offline dataset, for its hand-over

    const DatasetVersion& newest() const { return *versions.rbegin()->second; }
    std::uint64_t bytes() const { return newest().manifest->total_bytes(); }
};

// Bytes of a dataset's quota in use, and its number of sessions.
struct DatasetUse {
    Quota bytes;
    std::uint32_t sessions = 0;
};

// A dataset whose manifests are all damaged.
struct DamagedDataset {
    std::uint64_t dataset_id = 0;
    Error reason;
};

class Node final : public SessionHost {
public:
    // Recovers the contents of the state directory; blocks until done. `post_control` runs a function on the control
    // thread. Any thread may call `post_control`, and it must work until the node is destroyed.
    static Result<std::unique_ptr<Node>> start(const DaemonConfig& config,
                                               std::function<void(std::function<void()>)> post_control);
    ~Node() override;

    // Ends tasks, sessions and data plane, then saves the index; blocks until done. Call it after the control thread
    // has ended.
    void stop();

    const DaemonConfig& config() const { return config_; }
    const std::map<std::string, NodeDataset>& datasets() const { return datasets_; }
    // Datasets whose manifests are damaged, and why. They can only be removed.
    const std::map<std::string, DamagedDataset>& damaged() const { return damaged_; }
    // The sum of the quotas of datasets that are being added or removed.
    Quota changing_quota() const;
    Result<const NodeDataset*> find(const std::string& name) const;
    Tasks& tasks() { return tasks_; }
    const JobLimits& job_limits() const { return job_limits_; }
    const RateMeter& rates() const { return rates_; }
    std::size_t data_plane_threads() const { return shards_.size(); }
    const std::string& device_kind() const { return shards_.front()->device_kind(); }
    const std::string& why_not_ring() const { return shards_.front()->why_not_ring(); }
    IndexStatus index_status() const { return index_->status(); }
    // Null if this node neither serves nor reads peers.
    const Peers* peers() const { return peers_.get(); }
    HttpStatistics http_statistics() const { return transfers_->statistics(); }
    // Remotes that do not answer at present.
    std::vector<HttpOutage> outages() const { return transfers_->outages(); }
    std::int64_t now_ns() const { return clock_.now_ns(); }

    using Done = std::function<void(Result<void>)>;

    // Each of these starts a task and returns its id. A dataset has at most one task at a time. `add` sets the record's
    // id and versions.
    Result<std::uint64_t> add(DatasetRecord record);
    // Reports what adding the dataset would find, without adding it.
    Result<std::uint64_t> survey(DatasetRecord record);
    Result<std::uint64_t> reindex(const std::string& name);
    Result<std::uint64_t> scan(const std::string& name, ScanKind kind);

    // Closes the dataset's sessions and deletes all its local state; its remote is left alone.
    void remove(const std::string& name, Done done);
    // Sets a quota by hand, at once; the allocator does not change it. Lowers quotas that nobody set by hand to make
    // room. Calls `done` when the quota is saved. nullopt: returns the quota to the allocator, if there is one.
    void set_quota(const std::string& name, std::optional<Quota> quota, Done done);
    // nullopt: the config's limit applies again.
    void set_job_limit(const std::string& job, std::optional<JobLimit> limit, Done done);

    // Applies an allocator's quotas, which are based on a report made at `reported_ns`: all of them or none. Skips
    // unknown datasets and datasets whose quota was set by hand. Skips the whole plan if a quota was set after the
    // report.
    Result<void> apply_plan(const std::map<std::string, Quota>& quotas, std::int64_t reported_ns);
    // True if the allocator has not yet set the quota of some dataset.
    bool any_quota_unassigned() const;
    void lease(RateLease lease);
    // Sets the endpoints of the peers that the allocator names.
    void set_peers(std::vector<std::string> endpoints);
    void expire_lease();

    // Applies the quotas and job limits of a config, and adds its new datasets. Applies all quotas or none.
    Result<void> apply(const DaemonConfig& config);

    // Sums the statistics of all data-plane threads. Fails if a thread does not answer within two seconds.
    void collect(std::function<void(Result<ShardStatistics>)> done);
    // Call it about once a second. Updates job rates, drops unneeded versions, fails overdue answers and retries
    // offline datasets.
    void run_periodic_work();

    Result<std::shared_ptr<const DatasetVersion>> open(const std::string& dataset, std::uint64_t version,
                                                       const PeerCredentials& peer) override;
    Result<std::shared_ptr<TokenBucket>> bucket(const std::string& job) override;
    void attach(SessionSetup setup) override;
    void slots_populated(std::uint64_t dataset_id, std::uint64_t session_id, std::uint64_t bytes,
                         bool settled) override;
    Result<std::string> explain(const std::string& dataset, std::uint64_t version, std::uint32_t block,
                                const PeerCredentials& peer) override;

private:
    struct Indexing;
    struct Gathering;
    // Sums of the other datasets' quotas: `held` were set by hand, `dealt` by the allocator.
    struct QuotasOfOthers {
        Quota held;
        Quota dealt;
    };

    Node(const DaemonConfig& config, std::function<void(std::function<void()>)> post_control);
    Result<void> start_shards();
    Result<void> open_index();
    Result<void> load_job_limits();
    Result<void> load_datasets();
    Result<void> start_peers();
    void send_datasets_to_peers();
    Result<void> load_dataset(DatasetRecord record);
    void remove_orphan_segments();

    std::string segment_directory(std::uint64_t dataset_id) const;
    ShardThread& least_loaded() const;
    const NodeDataset* find(std::uint64_t dataset_id) const;
    // Makes the store on the dataset's shard from the recovered segments, and starts serving the dataset. Waits for one
    // turn of the shard.
    void hand_over(NodeDataset& dataset);
    void retry_offline();
    Result<void> check_capacity(const std::map<std::string, Quota>& changes) const;
    QuotasOfOthers quotas_of_others(const std::string& name) const;
    Result<void> check_room(const std::string& name, Quota quota) const;
    Result<void> make_room(const std::string& name, Quota quota);
    Result<void> hold_quotas(const std::map<std::string, Quota>& quotas);
    void lower_dealt_quotas(std::uint64_t Quota::* tier, std::uint64_t bytes);
    Result<void> check_idle(const NodeDataset& dataset) const;
    Result<void> check_is_new(const std::string& name) const;
    Result<void> check_online(const NodeDataset& dataset) const;

    Result<std::uint64_t> start_indexing(std::shared_ptr<Indexing> indexing, std::string kind);
    void finish_adding(const std::shared_ptr<Indexing>& indexing, Tasks::Outcome outcome,
                       const std::function<void(Tasks::Outcome)>& settle);
    void give_up_adding(const std::string& name, Tasks::Outcome failed,
                        const std::function<void(Tasks::Outcome)>& settle);
    void finish_reindexing(Indexing& indexing, Tasks::Outcome outcome,
                           const std::function<void(Tasks::Outcome)>& settle);
    void drop_old_versions(const ShardStatistics& statistics);
    void drop_manifests(NodeDataset& dataset, const std::vector<std::uint64_t>& needed);
    void keep_blocks(NodeDataset& dataset, const std::vector<std::uint64_t>& needed);
    void open_versions(NodeDataset& dataset);
    void remove_files(const std::string& name, std::uint64_t dataset_id, Done done);
    void apply_quota(NodeDataset& dataset, Quota quota);
    // Wakes all shards: a thread that waits for a job's bandwidth still assumes the old rate.
    void wake_shards();
    void save(const DatasetRecord& record, Done done);

    DaemonConfig config_;
    SteadyClock clock_;
    std::function<void(std::function<void()>)> post_control_;
    Catalog catalog_;
    JobLimits job_limits_;
    RateMeter rates_;
    DiskReports disk_reports_;
    std::unique_ptr<Index> index_;
    std::unique_ptr<HttpTransfers> transfers_;  // outlives its readers
    std::unique_ptr<HttpTransfers> peer_transfers_;
    std::vector<std::unique_ptr<ShardThread>> shards_;
    std::unique_ptr<Peers> peers_;  // destroyed before the shards
    std::map<std::string, NodeDataset> datasets_;
    std::map<std::string, DamagedDataset> damaged_;
    std::map<std::string, DatasetRecord> changing_;  // being added or removed; their names are reserved
    std::vector<std::shared_ptr<Gathering>> gatherings_;
    std::int64_t offline_retry_ns_ = 0;
    std::int64_t quota_set_ns_ = 0;             // when a quota was last set by hand
    std::map<std::uint64_t, DatasetUse> used_;  // by dataset id, as of about a second ago
    std::unique_ptr<WorkThread> files_;         // writes state files in order
    std::unique_ptr<WorkThread> memory_;        // unmaps dropped memory segments
    Tasks tasks_;
};

}  // namespace larder::cache
