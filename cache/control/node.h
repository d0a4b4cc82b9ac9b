#pragma once

// What the control plane knows and does: the datasets of this node, their versions and quotas, on which data-plane
// thread each lives, the jobs' limits, the tasks. It admits sessions, starts indexing, moves quotas, and gathers what
// the data plane counts. Everything is asked for on the control thread and nothing there waits: what the data plane or
// a disk must answer comes back through a callback, on the control thread too.

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
#include "cache/control/config.h"
#include "cache/control/disk_reports.h"
#include "cache/control/handshake.h"
#include "cache/control/job_limits.h"
#include "cache/control/new_dataset.h"
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
    std::map<std::uint64_t, std::int64_t> needed_ns;  // by version: when it was the newest, or a session read it
    std::vector<std::uint64_t> versions_cached;       // those whose blocks stay in the cache; empty: not settled yet
    std::uint64_t task = 0;                           // that runs on it; 0: none
    // True once the allocator has set the quota, or if there is no allocator. The dataset's task reads it, too.
    std::shared_ptr<std::atomic<bool>> quota_is_said = std::make_shared<std::atomic<bool>>(false);
    // Why it is not served, when its remote could not be reached: tried anew every 10 s.
    std::optional<Error> offline;
    std::shared_ptr<const RemotePlace> place;  // null: not opened yet
    std::vector<RecoveredSegment> segments;    // of an offline one, for when it is handed over

    const DatasetVersion& newest() const { return *versions.rbegin()->second; }
    std::uint64_t bytes() const { return newest().manifest->total_bytes(); }
};

// How much of a dataset's quota is in use, and by how many.
struct DatasetUse {
    Quota bytes;
    std::uint32_t sessions = 0;
};

// One whose manifests are damaged.
struct DamagedDataset {
    std::uint64_t dataset_id = 0;
    Error reason;
};

class Node final : public SessionHost {
public:
    // Recovers all that the state directory holds; blocks until then. `post_control` runs something on the control
    // thread, from any thread, and must work until the node is gone.
    static Result<std::unique_ptr<Node>> start(const Config& config,
                                               std::function<void(std::function<void()>)> post_control);
    ~Node() override;

    // Ends tasks, sessions and data plane, then writes the index down; blocks until then. When the control thread does
    // not run any more.
    void stop();

    const Config& config() const { return config_; }
    const std::map<std::string, NodeDataset>& datasets() const { return datasets_; }
    // Those whose manifests are damaged, with what is wrong: they can only be removed.
    const std::map<std::string, DamagedDataset>& damaged() const { return damaged_; }
    // Sum of the quotas of datasets that are being added or removed.
    Quota changing_quota() const;
    Result<const NodeDataset*> find(const std::string& name) const;
    Tasks& tasks() { return tasks_; }
    const JobLimits& job_limits() const { return job_limits_; }
    const RateMeter& rates() const { return rates_; }
    std::size_t data_plane_threads() const { return shards_.size(); }
    const std::string& device_kind() const { return shards_.front()->device_kind(); }
    const std::string& why_not_ring() const { return shards_.front()->why_not_ring(); }
    IndexStatus index_status() const { return index_->status(); }
    // Null: neither lends nor reads.
    const Peers* peers() const { return peers_.get(); }
    HttpStatistics http_statistics() const { return transfers_->statistics(); }
    // Remotes that do not answer at present.
    std::vector<HttpOutage> outages() const { return transfers_->outages(); }
    std::int64_t now_ns() const { return clock_.now_ns(); }

    using Done = std::function<void(Result<void>)>;

    // Each starts a task and gives its id. A dataset has at most one at a time.
    Result<std::uint64_t> add(NewDataset dataset);
    // Finds out what adding it would find, and adds nothing.
    Result<std::uint64_t> survey(NewDataset dataset);
    Result<std::uint64_t> reindex(const std::string& name);
    Result<std::uint64_t> scan(const std::string& name, ScanKind kind);

    // Closes the dataset's sessions and deletes all that is kept of it; not its remote.
    void remove(const std::string& name, Done done);
    // Holds at once, against the allocator too, and takes what it needs from quotas that nobody set by hand; `done`
    // when it is written down. Nothing: what an allocator says from now on, where there is one.
    void set_quota(const std::string& name, std::optional<Quota> quota, Done done);
    // Nothing: as the config has it.
    void set_job_limit(const std::string& job, std::optional<JobLimit> limit, Done done);

    // Applies an allocator's quotas, which follow from a report made at `reported_ns`: all of them or none. Skips
    // unknown datasets and those whose quota was set by hand. Skips the whole plan if a quota was set after the report.
    Result<void> apply_plan(const std::map<std::string, Quota>& quotas, std::int64_t reported_ns);
    // A dataset came whose quota the allocator has not said yet.
    bool any_quota_unsaid() const;
    void lease(RateLease lease);
    // Who the allocator says may be asked for blocks.
    void set_peers(std::vector<std::string> endpoints);
    void expire_lease();

    // Takes the quotas and job limits of a config, and adds datasets it newly names. All quotas or none.
    Result<void> apply(const Config& config);

    // What all data-plane threads count, together; an error when one does not answer within two seconds.
    void collect(std::function<void(Result<ShardStatistics>)> done);
    // To be called about once a second: job rates, versions nobody needs any more, answers overdue.
    void keep_house();

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
    // Sums over the other datasets, by who set them: a user, or the allocator.
    struct QuotasOfOthers {
        Quota held;
        Quota dealt;
    };

    Node(const Config& config, std::function<void(std::function<void()>)> post_control);
    Result<void> start_shards();
    Result<void> open_index();
    Result<void> load_job_limits();
    Result<void> load_datasets();
    Result<void> start_peers();
    void tell_peers();
    Result<void> load_dataset(DatasetRecord record);
    void remove_orphan_segments();

    std::string segment_directory(std::uint64_t dataset_id) const;
    ShardThread& least_loaded() const;
    const NodeDataset* find(std::uint64_t dataset_id) const;
    // Makes the store on the dataset's shard, with what recovery found, and hands it over. Waits for the shard, which
    // takes a turn's time.
    void hand_over(NodeDataset& dataset);
    void retry_offline();
    Result<void> check_capacity(const std::map<std::string, Quota>& changes) const;
    QuotasOfOthers quotas_of_others(const std::string& name) const;
    Result<void> check_room(const std::string& name, Quota quota) const;
    Result<void> make_room(const std::string& name, Quota quota);
    Result<void> hold_quotas(const std::map<std::string, Quota>& quotas);
    void give_way(std::uint64_t Quota::* tier, std::uint64_t bytes);
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
    // A data-plane thread that waits for a job's bandwidth reckons with the rate it saw last.
    void wake_shards();
    void save(const DatasetRecord& record, Done done);

    Config config_;
    SteadyClock clock_;
    std::function<void(std::function<void()>)> post_control_;
    Catalog catalog_;
    JobLimits job_limits_;
    RateMeter rates_;
    DiskReports disk_reports_;
    std::unique_ptr<Index> index_;
    std::unique_ptr<HttpTransfers> transfers_;  // outlives what reads through it
    std::unique_ptr<HttpTransfers> peer_transfers_;
    std::vector<std::unique_ptr<ShardThread>> shards_;
    std::unique_ptr<Peers> peers_;  // goes before the shards
    std::map<std::string, NodeDataset> datasets_;
    std::map<std::string, DamagedDataset> damaged_;
    std::map<std::string, DatasetRecord> changing_;  // being added or removed: the names are taken
    std::vector<std::shared_ptr<Gathering>> gatherings_;
    std::int64_t offline_retry_ns_ = 0;
    std::int64_t quota_set_ns_ = 0;             // when one was last set by hand
    std::map<std::uint64_t, DatasetUse> used_;  // by dataset id, as of about a second ago
    std::unique_ptr<WorkThread> files_;         // writes state files, in order
    std::unique_ptr<WorkThread> memory_;        // unmaps dropped memory segments
    Tasks tasks_;
};

}  // namespace larder::cache
