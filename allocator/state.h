#pragma once

// The input of a plan: the nodes of a cluster, the datasets, the jobs, and the cached bytes. Plain structs that refer
// to each other by index. Names are for people, for messages and for breaking ties, so that a plan does not depend on
// the order of the lists. Bytes are uint64, rates are bytes per second in double. `validate` checks the invariants and
// names the field that breaks one.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "allocator/protocol/unlimited.h"
#include "allocator/short_vector.h"
#include "base/error.h"

namespace larder::allocator {

// Beyond these limits, sums and quotients of valid values would overflow, or be inexact in double.
inline constexpr double kRateMax = 1e18;
inline constexpr double kWeightMin = 1e-6;
inline constexpr double kWeightMax = 1e6;
inline constexpr std::uint64_t kBytesEnd = std::uint64_t{1} << 53;  // all byte counts are below this

struct ClusterNode {
    std::string name;
    std::uint32_t gpus = 0;
    std::uint64_t memory_bytes = 0;  // for caching
    std::uint64_t disk_bytes = 0;    // for caching
    double disk_read_bytes_per_second = kUnlimited;
    double nic_bytes_per_second = kUnlimited;  // each way
    // Nodes of one group read each other's cache. A job hits the blocks in the groups it runs in.
    std::uint32_t peer_group = 0;
};

// Cache of one dataset on one node: a quota, or the cached bytes.
struct NodeCache {
    std::uint32_t node = 0;
    std::uint64_t memory_bytes = 0;
    std::uint64_t disk_bytes = 0;

    std::uint64_t bytes() const { return memory_bytes + disk_bytes; }
    bool operator==(const NodeCache&) const = default;
};

// Returns the quota on the node, which is added if there is none. `quotas` are sorted by node.
inline NodeCache& quota_on(std::vector<NodeCache>& quotas, std::uint32_t node) {
    const auto found = std::ranges::lower_bound(quotas, node, {}, &NodeCache::node);
    return found != quotas.end() && found->node == node ? *found : *quotas.insert(found, {.node = node});
}

struct ClusterDataset {
    std::string name;
    std::uint64_t size_bytes = 0;
    std::vector<NodeCache> quotas;  // of the plan in force; empty before the first
    std::vector<NodeCache> cached;  // as reported
    // The operator's limits on the sum over all nodes. They are cut to the room of the peer groups that have the
    // dataset. Equal values pin the quota.
    std::uint64_t quota_floor_bytes = 0;
    std::uint64_t quota_cap_bytes = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t cached_floor_bytes = 0;  // of the cached bytes, so many stay (guessed_rates.h)
    // Quotas that operators set on nodes. The plan takes them unchanged, before all others.
    std::vector<NodeCache> held;
    // Nodes where jobs are expected that wait for this dataset's cache, sorted. Bytes of the floor that are not cached
    // yet go there first.
    std::vector<std::uint32_t> expected_on;

    bool is_held_on(std::uint32_t node) const { return std::ranges::find(held, node, &NodeCache::node) != held.end(); }
};

// Some GPUs of one node. A job that uses no GPUs is placed by shares with gpus = 0, and counts as spread evenly over
// the nodes of these shares.
struct GpuShare {
    std::uint32_t node = 0;
    std::uint32_t gpus = 0;

    bool operator==(const GpuShare&) const = default;
};
using GpuShares = ShortVector<GpuShare, 2>;

struct ClusterJob {
    std::string name;
    std::optional<std::uint32_t> user;  // jobs of nullopt count as one user's
    bool is_admitted = false;           // a scheduler or an operator registered the job
    std::uint32_t dataset = 0;
    std::uint32_t gpus = 0;
    double ideal_bytes_per_second = 0;  // f*
    bool ideal_is_measured = false;     // false: f* is declared or assumed. Does not change plans.
    bool ideal_is_guess = false;        // assumed, of a new job: it takes no cached bytes from others (guessed_rates.h)
    double weight = 1;                  // of max-min
    // The current epoch included. At 1 or less, blocks cached from now on are not read again. What is cached counts by
    // how often it is read until the job ends.
    double remaining_epochs = kUnlimited;
    std::uint64_t unread_bytes = 0;         // of the current epoch; 0: between epochs
    std::uint64_t unread_cached_bytes = 0;  // of those, the cached ones
    GpuShares placement;                    // empty: waits for GPUs, and gets no cache or bandwidth
    // For jobs that take turns (assign.h): the fraction of time that the job runs, which scales its part of the cache.
    double time_share = 1;
    // While the job waits for its next turn: where it ran last. It then keeps its part of the cache, but has no
    // bandwidth.
    GpuShares last_placement;
    double bandwidth_floor_bytes_per_second = 0;
    double bandwidth_cap_bytes_per_second = kUnlimited;

    bool waits_for_turn() const { return placement.empty() && !last_placement.empty(); }
    // Jobs that wait for a turn get GPUs from their scheduler, not from the plan.
    bool waits_for_gpus() const { return placement.empty() && last_placement.empty(); }
};

struct ClusterState {
    double remote_bytes_per_second = 0;  // B: what all jobs together may take from the remote
    // Grants hold for about this long. If a job's epoch ends sooner, the beginning of its next epoch counts too.
    double horizon_s = 0;
    double lease_floor_bytes_per_second = 0;  // the least that a lease gives each job on each of its nodes
    std::vector<ClusterNode> nodes;
    std::vector<ClusterDataset> datasets;
    std::vector<ClusterJob> jobs;
};

// Checks that numbers are not negative, and finite except where infinity means "no limit"; that rates, weights and
// bytes are within the limits above, indices in range, names unique, floors below caps, sums of floors within the
// cluster, and GPUs not booked twice. The error names the field: "jobs[3].dataset: 7 is not below 2".
Result<void> validate(const ClusterState& state);

}  // namespace larder::allocator
