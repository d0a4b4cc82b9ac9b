#pragma once

// What an allocator is told about this node, once a second: its capacity, what is cached of each dataset, and what each
// job has read, waited and wanted. Counters only grow while the daemon runs. Sizes are as stored (records have headers
// and padding), so that a quota over a size is the part of the dataset it holds. Control thread only.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "allocator/protocol/node_report.h"
#include "cache/control/config.h"
#include "cache/shard/statistics.h"

namespace larder::cache {

// A dataset of the node, whether it is served or not.
struct ReportedDataset {
    std::string name;
    std::uint64_t payload_bytes = 0;  // of all its blocks
    std::uint64_t blocks = 0;
    Quota quota;
    bool quota_held = false;  // it was set by hand
};

// How peers reach the node; empty without any.
struct ReportedPeers {
    std::string group;
    std::string endpoint;
};

class NodeReporter {
public:
    // `state_directory`: its number (state_lock.h).
    explicit NodeReporter(std::uint64_t state_directory);

    // `room` is what the allocator has to give on this node. `lease_applied`: number of the lease in force; 0: none.
    allocator::NodeReport make(const AllocatorConfig& allocator, Quota room,
                               const std::vector<ReportedDataset>& datasets, const ShardStatistics& statistics,
                               std::uint64_t lease_applied, std::int64_t now_ns, const ReportedPeers& peers = {});

private:
    // A job as the allocator sees it: over all datasets it reads, under the one it reads most of.
    struct Job {
        std::string dataset;
        std::uint64_t dataset_bytes_delivered = 0;  // of that one
        std::uint32_t sessions = 0;
        std::uint32_t loops = 0;
        std::uint64_t bytes = 0;
        std::int64_t busy_ns = 0;
        std::uint64_t remote_bytes = 0;
        std::uint64_t waiting_bytes = 0;
        std::uint64_t unread_bytes = 0;
        std::uint64_t effective_bytes = 0;
        std::optional<std::uint32_t> epoch;  // nothing was read yet: it may be resumed at any
    };
    // What was last seen of a job.
    struct Seen {
        std::int64_t at_ns = 0;
        std::int64_t session_at_ns = 0;
        std::uint32_t loops = 0;
        std::uint64_t remote_bytes = 0;
        double demand_bytes_per_second = 0;
    };

    static std::map<std::string, Job> jobs_of(const ShardStatistics& statistics);
    // False when the job is gone.
    bool look(const Job& job, Seen& seen, std::int64_t now_ns) const;

    // Bytes that the whole dataset would take in the cache.
    std::uint64_t stored_bytes(const ReportedDataset& dataset, const StoreUsage& usage);
    allocator::DatasetReport report_of(const ReportedDataset& dataset, const ShardStatistics& statistics);

    std::uint64_t instance_;
    std::uint64_t state_directory_;
    std::map<std::string, Seen> seen_;
    std::map<std::string, double> stored_ratios_;  // by dataset: bytes of cache a byte of it takes, as last reported
};

}  // namespace larder::cache
