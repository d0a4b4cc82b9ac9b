#pragma once

// The joint bench's cluster: four nodes, one remote, and six jobs, two of which read the same dataset. Ideal rates,
// sizes and readers differ, so that cache and bandwidth are worth most in different places.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace larder::bench {

inline constexpr std::uint32_t kJointLease_s = 5;  // the allocator's leases

struct JointDataset {
    std::string name;
    std::uint32_t blocks = 0;
};

struct JointJob {
    std::string name;
    std::uint32_t node = 0;
    std::uint32_t dataset = 0;
    double ideal_bytes_per_second = 0;  // f*
};

struct JointScenario {
    std::uint32_t nodes = 4;
    std::uint64_t node_cache_bytes = 0;  // in memory
    std::uint64_t node_disk_bytes = 0;   // on disk
    double remote_bytes_per_second = 0;  // B
    std::uint64_t block_bytes = 0;
    std::uint32_t batch_size = 0;
    std::uint32_t epochs = 0;  // for every job, at least
    double patience_s = 0;     // the time limit for converging after an event
    std::vector<JointDataset> datasets;
    std::vector<JointJob> jobs;
};

// Returns the names of the allocator's objectives that the benches compare, the baseline first.
std::vector<std::string> joint_objectives();
// Returns the objectives, and "lru": caches that evict the block read least recently, without an allocator.
std::vector<std::string> joint_policies();
// Returns what the bench `reality` compares: each objective with a cache for each node; "max-min+peers", where nodes
// pool their caches; and "lru", one cache for all that evicts the block read least recently, without an allocator.
std::vector<std::string> reality_policies();
inline constexpr std::string_view kPeersSuffix = "+peers";

JointScenario joint_scenario(bool quick);
// The same cluster with all sizes three times as large, so that an epoch is long compared with the nodes' report period
// of a second. Half of each cache is on disk, which stays when a daemon is killed.
JointScenario joint_events_scenario(bool quick);

}  // namespace larder::bench
