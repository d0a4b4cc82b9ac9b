#include "allocator/rendezvous.h"

#include <cmath>

#include "base/assert.h"
#include "base/hash.h"

namespace larder::allocator {

std::size_t node_of_block(std::uint64_t dataset_id, std::uint32_t block_id, std::span<const WeightedNode> nodes) {
    std::size_t best = nodes.size();
    double best_score = 0;
    const std::uint64_t block = mix64(mix64(dataset_id) ^ block_id);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        if (nodes[i].weight <= 0) continue;
        const std::uint64_t hash = mix64(block ^ mix64(nodes[i].id));
        // Uniform in (0, 1): exponential arrival times, the soonest wins.
        const double uniform = (static_cast<double>(hash >> 11) + 0.5) * 0x1p-53;
        const double score = -std::log(uniform) / nodes[i].weight;
        if (best == nodes.size() || score < best_score || (score == best_score && nodes[i].id < nodes[best].id)) {
            best_score = score;
            best = i;
        }
    }
    LARDER_ASSERT(best < nodes.size());
    return best;
}

}  // namespace larder::allocator
