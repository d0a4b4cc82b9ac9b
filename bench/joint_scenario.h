#pragma once

// The cluster of the joint bench: four nodes, one remote, and six jobs of which two read one dataset. Ideal rates,
// sizes and readers differ, so that cache and bandwidth are worth most in different places.

#include <cstdint>
#include <string>
#include <vector>

namespace larder::bench {

inline constexpr std::uint32_t kJointLease_s = 5;  // of the allocator's leases

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
    std::uint64_t node_disk_bytes = 0;   // likewise, on disk
    double remote_bytes_per_second = 0;  // B
    std::uint64_t block_bytes = 0;
    std::uint32_t batch_size = 0;
    std::uint32_t epochs = 0;  // of every job at least
    double patience_s = 0;     // after an event: what has not converged then will not
    std::vector<JointDataset> datasets;
    std::vector<JointJob> jobs;
};

JointScenario joint_scenario(bool quick);
// The same cluster with everything in bytes three times as large, so that an epoch is long beside the second in which
// nodes report, and half of each cache on disk, which is left behind when a daemon is killed.
JointScenario joint_events_scenario(bool quick);

}  // namespace larder::bench
