#pragma once

// What a plan is made from: the nodes of a cluster, the datasets their jobs read, the jobs, and what is cached where.
// Plain structs that refer to each other by index; names are for people, for messages and for breaking ties, so that a
// plan does not depend on the order things are listed in. Bytes are uint64, rates are bytes per second in double.
// `validate` says what must hold, naming the field that does not.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"

namespace larder::allocator {

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();
// Beyond these, sums and quotients of what is valid one by one would overflow, or be inexact in double.
inline constexpr double kRateMax = 1e18;
inline constexpr double kWeightMin = 1e-6;
inline constexpr double kWeightMax = 1e6;
inline constexpr std::uint64_t kBytesEnd = std::uint64_t{1} << 53;  // bytes are below

struct Node {
    std::string name;
    std::uint32_t gpus = 0;
    std::uint64_t memory_bytes = 0;  // for caching
    std::uint64_t disk_bytes = 0;    // for caching
    double disk_read_bytes_per_second = kUnlimited;
    double nic_bytes_per_second = kUnlimited;  // each way
    // Nodes of one group read each other's cache; a job hits what lies in the groups it runs in.
    std::uint32_t peer_group = 0;
};

// Cache of one dataset on one node: a quota, or what is there.
struct NodeCache {
    std::uint32_t node = 0;
    std::uint64_t memory_bytes = 0;
    std::uint64_t disk_bytes = 0;

    std::uint64_t bytes() const { return memory_bytes + disk_bytes; }
    bool operator==(const NodeCache&) const = default;
};

struct Dataset {
    std::string name;
    std::uint64_t size_bytes = 0;
    std::vector<NodeCache> quotas;  // of the plan in force; empty before the first
    std::vector<NodeCache> cached;  // as reported
    // What the operator insists on, over all nodes, as far as it fits where the dataset is; equal values pin the quota.
    std::uint64_t quota_floor_bytes = 0;
    std::uint64_t quota_cap_bytes = std::numeric_limits<std::uint64_t>::max();
    // Quotas that operators set on nodes: the plan has them as they are, before all else.
    std::vector<NodeCache> held;

    bool is_held_on(std::uint32_t node) const { return std::ranges::find(held, node, &NodeCache::node) != held.end(); }
};

// Some GPUs of one node. A job that uses no GPU has shares of 0 and counts as spread evenly over their nodes.
struct GpuShare {
    std::uint32_t node = 0;
    std::uint32_t gpus = 0;

    bool operator==(const GpuShare&) const = default;
};
using Placement = std::vector<GpuShare>;

struct Job {
    std::string name;
    std::uint32_t dataset = 0;
    std::uint32_t gpus = 0;
    double ideal_bytes_per_second = 0;  // f*
    double weight = 1;                  // of max_min
    double remaining_epochs =
        kUnlimited;                  // with the current one; 1 and less: what is cached from now on comes too late
    std::uint64_t unread_bytes = 0;  // of the current epoch; 0: between epochs
    std::uint64_t unread_cached_bytes = 0;  // of those, what is cached
    Placement placement;                    // empty: waits for GPUs, and has no part of anything meanwhile
    // Where jobs take turns: the part of the time that it runs, by which cache is given (assign.h); and, while it waits
    // for its next turn, where it ran last: it has its part of the cache, and none of the bandwidth.
    double time_share = 1;
    Placement last_placement;
    double bandwidth_floor_bytes_per_second = 0;
    double bandwidth_cap_bytes_per_second = kUnlimited;

    bool waits_for_turn() const { return placement.empty() && !last_placement.empty(); }
    // Whose turn it is, and where, is for its scheduler to say.
    bool waits_for_gpus() const { return placement.empty() && last_placement.empty(); }
};

struct ClusterState {
    double remote_bytes_per_second = 0;  // B: what all jobs together may take from the remote
    // Grants hold for about so long: of a job whose epoch ends sooner, the beginning of its next one counts too.
    double horizon_s = 0;
    std::vector<Node> nodes;
    std::vector<Dataset> datasets;
    std::vector<Job> jobs;
};

// Finite and not negative where no limit is meant, rates, weights and bytes within the limits above,
// indices in range, names unique, floors below caps, sums of floors within the cluster, GPUs not booked twice. The
// error names the field: "jobs[3].dataset: 7 is not below 2".
Result<void> validate(const ClusterState& state);

}  // namespace larder::allocator
