#pragma once

// The datasets that this node has, and their records on disk. A dataset is kept (served or offline), or it is being
// added or removed, or its record or manifests are damaged; its name is taken in all cases. Control thread only, unless
// noted.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/control/catalog.h"
#include "cache/control/handshake.h"
#include "cache/control/tasks.h"
#include "cache/control/work_thread.h"
#include "cache/remote/remote_place.h"
#include "cache/shard/shard_thread.h"
#include "cache/store/index.h"
#include "cache/store/recovery.h"

namespace boost::asio {
class io_context;
}

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
    // The reason why the dataset is offline: its remote could not be reached. Retried every 10 s.
    std::optional<Error> offline;
    bool is_opening = false;  // a thread looks for the remote, and may hang
    bool offline_is_logged = false;
    std::string cache_problem;  // which cached bytes could not be read at start, and why; empty: all could
    std::shared_ptr<const RemotePlace> place;  // null: not opened yet
    std::vector<RecoveredSegment> segments;    // recovered; the shard takes them over once the dataset is online

    const DatasetVersion& newest() const { return *versions.rbegin()->second; }
    std::uint64_t bytes() const { return newest().manifest->total_bytes(); }
};

// A dataset whose record or whose manifests, all of them, are damaged.
struct DamagedDataset {
    std::uint64_t dataset_id = 0;  // 0: unknown
    Error reason;
};

class Datasets {
public:
    using Done = std::function<void(Result<void>)>;

    // The arguments must outlive the Datasets. `files` runs work that blocks on the disk; `control` is the io_context
    // of the control thread.
    Datasets(const std::string& state_directory, const Tasks& tasks, Index& index, WorkThread& files,
             boost::asio::io_context& control);

    // The datasets that are kept, by name.
    const std::map<std::string, NodeDataset>& all() const { return datasets_; }
    std::map<std::string, NodeDataset>& all() { return datasets_; }
    NodeDataset& at(const std::string& name) { return datasets_.at(name); }
    // Datasets whose records or manifests are damaged, and why. They can only be removed.
    const std::map<std::string, DamagedDataset>& damaged() const { return damaged_; }
    // Records of the datasets that are being added or removed.
    const std::map<std::string, DatasetRecord>& changing() const { return changing_; }

    // Errors say why the dataset cannot be used now, and what to do.
    Result<const NodeDataset*> find(const std::string& name) const;
    const NodeDataset* find(std::uint64_t dataset_id) const;
    Result<void> check_idle(const NodeDataset& dataset) const;
    Result<void> check_online(const NodeDataset& dataset) const;
    Result<void> check_is_new(const std::string& name) const;
    bool is_known(const std::string& name) const;

    void add(NodeDataset dataset);
    void add_damaged(const std::string& name, DamagedDataset dataset) { damaged_.emplace(name, std::move(dataset)); }
    // reserve() takes the record's name while its dataset is being added, release() frees the name.
    void reserve(const DatasetRecord& record) { changing_.emplace(record.definition.name, record); }
    void release(const std::string& name) { changing_.erase(name); }

    // Writes the dataset's record, then calls `done`, which may be empty.
    void save(const DatasetRecord& record, Done done);
    // Closes the dataset's sessions and deletes all its local state; its remote is left alone.
    void remove(const std::string& name, Done done);

    // Functions of the Catalog block on the disk: call them on a thread that may block.
    Catalog& catalog() { return catalog_; }
    std::string segments_directory() const { return state_directory_ + "/segments"; }
    std::string segment_directory(std::uint64_t dataset_id) const;

private:
    void remove_files(const std::string& name, std::uint64_t dataset_id, Done done);

    const std::string state_directory_;
    const Tasks& tasks_;
    Index& index_;
    WorkThread& files_;
    boost::asio::io_context& control_;
    Catalog catalog_;
    std::map<std::string, NodeDataset> datasets_;
    std::map<std::string, DamagedDataset> damaged_;
    std::map<std::string, DatasetRecord> changing_;
};

}  // namespace larder::cache
