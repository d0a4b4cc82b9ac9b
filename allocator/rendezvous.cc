#include "allocator/rendezvous.h"

#include <cmath>
#include <limits>

#include "base/assert.h"

namespace larder::allocator {
namespace {

// The finalizer of SplitMix64 (Steele, Lea and Flood 2014).
std::uint64_t mix(std::uint64_t value) {
    value += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
}

}  // namespace

std::size_t node_of_block(std::uint64_t dataset_id, std::uint32_t block_id, std::span<const WeightedNode> nodes) {
    std::size_t best = nodes.size();
    double best_score = std::numeric_limits<double>::infinity();
    const std::uint64_t block = mix(mix(dataset_id) ^ block_id);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        if (nodes[i].weight <= 0) continue;
        const std::uint64_t hash = mix(block ^ mix(nodes[i].id));
        // Uniform in (0, 1): exponential arrival times, the soonest wins.
        const double uniform = (static_cast<double>(hash >> 11) + 0.5) * 0x1p-53;
        const double score = -std::log(uniform) / nodes[i].weight;
        if (score < best_score || (score == best_score && nodes[i].id < nodes[best].id)) {
            best_score = score;
            best = i;
        }
    }
    LARDER_ASSERT(best < nodes.size());
    return best;
}

}  // namespace larder::allocator
