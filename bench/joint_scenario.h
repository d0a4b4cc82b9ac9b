#pragma once

// The cluster of the joint bench: four nodes, one remote, and six jobs of which two read one dataset. Ideal rates,
// sizes and readers differ, so that cache and bandwidth are worth most in different places.

#include <cstdint>
#include <string>
#include <vector>

namespace larder::bench {

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
    std::uint64_t node_cache_bytes = 0;
    double remote_bytes_per_second = 0;  // B
    std::uint64_t block_bytes = 0;
    std::uint32_t batch_size = 0;
    std::uint32_t epochs = 0;  // of every job at least
    std::vector<JointDataset> datasets;
    std::vector<JointJob> jobs;
};

JointScenario joint_scenario(bool quick);

}  // namespace larder::bench
