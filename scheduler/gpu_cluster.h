#pragma once

// The GPUs of the cluster: nodes, each with GPUs of one type, numbered from 0. A machine with GPUs of two types is two
// nodes of the same name; first_gpu says how the machine numbers the GPUs. A job's GPUs are named by node and number,
// so two jobs share a GPU only if a policy says so.

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace larder::scheduler {

// In place of the index of a GPU type: a job may run on any type, or no type was found.
inline constexpr std::uint32_t kAnyGpuType = std::numeric_limits<std::uint32_t>::max();
inline constexpr std::uint32_t kNoGpuType = kAnyGpuType;
// In place of a number of GPUs: there is no limit.
inline constexpr std::uint32_t kAllGpus = std::numeric_limits<std::uint32_t>::max();
inline constexpr std::uint32_t kGpusPerNodeMax = 64;

struct GpuNode {
    std::string name;
    std::uint32_t gpu_type = 0;   // index in GpuCluster::gpu_types
    std::uint32_t gpus = 0;       // at most kGpusPerNodeMax
    bool usable = true;           // false while the node is lost or drained
    std::uint32_t first_gpu = 0;  // the number of its first GPU on the machine
};

struct GpuCluster {
    std::vector<std::string> gpu_types;
    std::vector<GpuNode> nodes;
    // The nodes are the cluster manager's: they come, go and change. Such a node's GPUs are counted only. After a
    // change of their number, jobs may have GPUs with higher numbers.
    bool is_open = false;
};

// Some GPUs of one node: bit i stands for GPU i.
struct NodeGpus {
    std::uint32_t node = 0;
    std::uint64_t gpus = 0;

    std::uint32_t count() const { return static_cast<std::uint32_t>(std::popcount(gpus)); }
    bool operator==(const NodeGpus&) const = default;
};

// Returns the lowest `count` set bits.
constexpr std::uint64_t lowest_bits(std::uint64_t bits, std::uint32_t count) {
    std::uint64_t taken = 0;
    for (; count > 0; --count) {
        const std::uint64_t bit = bits & -bits;
        taken |= bit;
        bits &= ~bit;
    }
    return taken;
}

// Sorted by node, each node at most once.
using Placement = std::vector<NodeGpus>;

inline std::uint32_t gpu_count(const Placement& placement) {
    std::uint32_t gpus = 0;
    for (const NodeGpus& share : placement) gpus += share.count();
    return gpus;
}

}  // namespace larder::scheduler
