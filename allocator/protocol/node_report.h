#pragma once

// The report that a node sends the allocator every second. Counters only grow while its daemon runs, and a restarted
// daemon is a new instance. The JSON is these structs, member by member (codec.h).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "allocator/protocol/unlimited.h"

namespace larder::allocator {

// The name under which a node's scans are leased their rate. No job can have it.
inline constexpr const char* kScansJob = "(scan)";

struct DatasetReport {
    std::string name;
    std::uint64_t size_bytes = 0;
    std::uint64_t quota_memory_bytes = 0;
    std::uint64_t quota_disk_bytes = 0;
    std::uint64_t cached_memory_bytes = 0;
    std::uint64_t cached_disk_bytes = 0;
    bool quota_held = false;  // an operator set the quota on the node; the plan keeps it
};

// The waits for data of a job's ranks on the node, in the last seconds: times in which at least one of the ranks
// waited. Times are of the node's clock.
struct WaitsReport {
    static constexpr std::size_t kLengthsMax = 512;

    std::uint64_t since_us = 0;
    std::uint64_t until_us = 0;
    std::uint64_t counted_us = 0;   // up to which busy_s of the job counts, on average over these ranks
    std::uint64_t batches = 0;      // counter: taken by these ranks
    std::uint64_t shortest_us = 0;  // that any of them lately needed for a batch; 0: unknown
    // From since_us on: the length of a time without wait, then that of a wait, and so on.
    std::vector<std::uint64_t> lengths_us;
};

// A job that has sessions on the node. Its name has no parenthesis.
struct JobReport {
    std::string name;
    std::string dataset;
    std::uint32_t ranks = 1;             // training loops of the job on this node
    std::uint64_t bytes = 0;             // counter: delivered to these loops
    double busy_s = 0;                   // counter: the loops' time not spent waiting for data, summed
    double demand_bytes_per_second = 0;  // of the remote, lately, as if there were no limit
    // Counter: bytes taken from the remote for the job. Empty: the daemon does not report it.
    std::optional<std::uint64_t> remote_bytes;
    std::uint64_t unread_bytes = 0;         // of the current epoch
    std::uint64_t unread_cached_bytes = 0;  // of those, on this node
    // Number of the current epoch. Empty: the job has read nothing yet, or the daemon does not report it.
    std::optional<std::uint32_t> epoch;
    // The uid that the name belongs to on this node. Empty: the daemon does not report it.
    std::optional<std::uint32_t> user;
    // Only if the ranks work in step with others, on other nodes. Sent from version 5 on.
    std::optional<WaitsReport> waits;
};

struct NodeReport {
    std::string node;
    std::uint64_t instance = 0;  // drawn anew when the daemon starts
    // The number of its state directory, which one daemon at a time can use; 0: not reported.
    std::uint64_t state_directory = 0;
    std::uint64_t lease_applied = 0;  // number of the lease in force there; 0: none
    bool rates = true;                // false: the node follows quotas only, and gets no lease
    std::uint32_t scans = 0;          // scans (warming, verifying) under way; they use the bandwidth jobs leave
    std::uint32_t gpus = 0;
    std::uint64_t memory_bytes = 0;
    std::uint64_t disk_bytes = 0;
    double disk_read_bytes_per_second = kUnlimited;
    double nic_bytes_per_second = kUnlimited;
    // Nodes of one group read each other's cache at these endpoints. Both are empty if this node does not.
    std::string peer_group;
    std::string peer_endpoint;
    // The etag of the list of peers that the node has (NodePlan::peers_etag). Empty: none. Sent from version 6 on.
    std::optional<std::uint64_t> peers_etag;
    std::vector<DatasetReport> datasets;
    std::vector<JobReport> jobs;
    // Datasets of NodePlan::warm that have been warmed to their present quota. Sent from version 4 on.
    std::vector<std::string> warmed;
    // The time of the report on the node's clock, which is compared with no other node's. Sent from version 5 on.
    std::optional<std::uint64_t> clock_us;
};

}  // namespace larder::allocator
