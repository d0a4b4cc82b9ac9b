#pragma once

// The report that this node sends its allocator once a second: the node's capacity, the cached bytes of each dataset,
// and the bytes, waiting time and demand of each job. Counters only grow while the daemon runs. Sizes are as stored
// (records have headers and padding), so that quota / size is the fraction of the dataset that fits. Control thread
// only.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "allocator/protocol/node_report.h"
#include "cache/control/daemon_config.h"
#include "cache/shard/statistics.h"

namespace larder::cache {

// A dataset of the node, whether it is served or not.
struct ReportedDataset {
    allocator::DatasetReport report;  // its name and quotas; the reporter adds its size and its cached bytes
    std::uint64_t payload_bytes = 0;  // of all its blocks
    std::uint64_t blocks = 0;

    const std::string& name() const { return report.name; }
};

// How peers reach the node; empty without peers.
struct ReportedPeers {
    std::string group;
    std::string endpoint;
};

class NodeReporter {
public:
    // `state_directory` is the directory's number (state_lock.h).
    explicit NodeReporter(std::uint64_t state_directory);

    // `room` is the capacity that the allocator may assign on this node. `lease_applied` is the number of the current
    // lease; 0: none.
    allocator::NodeReport make(const AllocatorClientConfig& allocator, Quota room,
                               const std::vector<ReportedDataset>& datasets, const ShardStatistics& statistics,
                               std::uint64_t lease_applied, std::int64_t now_ns, const ReportedPeers& peers = {});

private:
    // A job as reported: sums over all its datasets, under the dataset of which it reads most.
    struct Job {
        std::string dataset;
        std::uint64_t dataset_bytes_delivered = 0;  // of `dataset` only
        std::uint32_t sessions = 0;
        std::uint32_t loops = 0;
        std::uint64_t bytes = 0;
        std::int64_t busy_ns = 0;
        std::uint64_t remote_bytes = 0;
        std::uint64_t waiting_bytes = 0;
        std::uint64_t unread_bytes = 0;
        std::uint64_t effective_bytes = 0;
        std::optional<std::uint32_t> epoch;  // nullopt before the first read, because the job may resume at any epoch
    };
    // The last observation of a job.
    struct Seen {
        std::int64_t at_ns = 0;
        std::int64_t session_at_ns = 0;
        std::uint32_t loops = 0;
        std::uint64_t remote_bytes = 0;
        double demand_bytes_per_second = 0;
    };

    static std::map<std::string, Job> jobs_of(const ShardStatistics& statistics);
    // Updates `seen`. Returns false if the job has ended.
    bool observe(const Job& job, Seen& seen, std::int64_t now_ns) const;

    // The bytes that the whole dataset would take in the cache.
    std::uint64_t estimate_stored_bytes(const ReportedDataset& dataset, const StoreUsage& usage);
    allocator::DatasetReport report_of(const ReportedDataset& dataset, const ShardStatistics& statistics);

    std::uint64_t instance_;
    std::uint64_t state_directory_;
    std::map<std::string, Seen> seen_;
    std::map<std::string, double> stored_ratios_;  // by dataset: cache bytes per dataset byte, as reported
};

}  // namespace larder::cache
