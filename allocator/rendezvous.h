#pragma once

// Which node of several keeps a block: weighted rendezvous hashing (Thaler and Ravishankar 1998; weights after
// Schindelhauer and Schomaker 2005). Each node gets its weight's part of the blocks; when a weight changes, only blocks
// that have to move do, and every node works out the same answer by itself.

#include <cstdint>
#include <span>

namespace larder::allocator {

struct WeightedNode {
    std::uint64_t id = 0;  // stable: of the node's name, not of its place in a list
    double weight = 0;     // its quota of the dataset
};

// The index in `nodes` of the one that keeps the block. At least one weight must be above 0.
std::size_t node_of_block(std::uint64_t dataset_id, std::uint32_t block_id, std::span<const WeightedNode> nodes);

}  // namespace larder::allocator
