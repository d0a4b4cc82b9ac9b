#pragma once

// Where in a virtual cluster a gang should lie: on as few nodes as can be, and those as close as can be. Seen are only
// the GPUs its tenant may have, node by node; nodes of virtual cells that are not bound yet are all alike, and are
// bound once it is known how many of them are wanted. Pure.

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/cells/hierarchy.h"

namespace larder::scheduler {

// What one node of a virtual cell has to give.
struct NodeOffer {
    const Hierarchy* hierarchy = nullptr;
    std::uint32_t hierarchy_index = 0;
    std::uint32_t root = 0;   // the virtual cell; the offers of one follow each other
    std::uint32_t level = 0;  // its level
    std::uint32_t node = 0;   // in the hierarchy; where the cell is not bound, in the cell
    bool fresh = false;       // not bound
    std::uint32_t gpus = 0;
    std::uint32_t quiet = 0;      // of these, such that nobody has to go for them
    std::uint32_t root_free = 0;  // GPUs that the virtual cell has to give
    std::uint32_t near = kNone;   // the place of the node among those near the gang's data
};

struct OfferTaken {
    std::uint32_t offer = 0;
    std::uint32_t gpus = 0;
};

// One that fits into a node goes where the fewest GPUs are left over, into a virtual cell that is bound already and has
// least to give. A larger one takes as few nodes as it can, within the smallest cell in which that can be. Among
// equals: where fewer have to go, nearer its data, first. Empty: there are too few.
std::vector<OfferTaken> plan_gang(std::span<const NodeOffer> offers, std::uint32_t gpus);

// So many of a node's GPUs (`from`), within the smallest cell that has them: of those the one with fewest to `avoid`,
// then with the fewest left over.
std::uint64_t pick_gpus(const Hierarchy& hierarchy, std::uint64_t from, std::uint64_t avoid, std::uint32_t count);

}  // namespace larder::scheduler
