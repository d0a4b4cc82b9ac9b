#pragma once

// Packs the pods of a gang into nodes. A pod is a part of the gang that needs all its GPUs on one node; pods may differ
// in size, and several may share a node. Pure.

#include <cstdint>
#include <span>
#include <vector>

namespace larder::scheduler {

struct PodNode {
    std::uint32_t node = 0;  // index in the list of free GPUs
    std::uint32_t gpus = 0;  // of all pods on the node
};

// Packs the pods into as few nodes as it finds; nodes with fewer GPUs left over are preferred. `free`: the free GPUs of
// each node, most first. Empty: no way was found. The search is exact up to a number of steps that gangs of two sizes
// of pods do not reach in practice.
std::vector<PodNode> pack_pods(std::span<const std::uint32_t> free, std::span<const std::uint32_t> pods);

}  // namespace larder::scheduler
