#pragma once

// The versions of datasets: opens their manifests, and drops versions that nobody needs any more.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "cache/control/datasets.h"
#include "cache/control/work_thread.h"
#include "cache/shard/statistics.h"

namespace larder::cache {

// Any thread.
Result<std::shared_ptr<const DatasetVersion>> open_version(const std::string& manifest_path);

// Opens the dataset's versions whose manifests are intact, and leaves the others out of its record. Returns the damage
// if none is intact.
std::optional<Error> open_versions(NodeDataset& dataset, const Catalog& catalog);

// Control thread only.
class OldVersions {
public:
    // The arguments must outlive the OldVersions. A version that nobody reads is kept for `grace_ns`.
    OldVersions(std::int64_t grace_ns, const Clock& clock, Datasets& datasets, WorkThread& files,
                boost::asio::io_context& control)
        : grace_ns_(grace_ns), clock_(clock), datasets_(datasets), files_(files), control_(control) {}

    // Drops a version that is not the newest once no session has read it for `grace_ns`. The grace period covers a
    // restart of the daemon or a worker, after which jobs reopen their version. Call it about once a second.
    void drop(const ShardStatistics& statistics);

private:
    void drop_manifests(NodeDataset& dataset, const std::vector<std::uint64_t>& needed);
    void keep_blocks(NodeDataset& dataset, const std::vector<std::uint64_t>& needed);

    const std::int64_t grace_ns_;
    const Clock& clock_;
    Datasets& datasets_;
    WorkThread& files_;
    boost::asio::io_context& control_;
};

}  // namespace larder::cache
