#pragma once

// Plans where in a virtual cluster a gang should lie: on as few nodes as possible, as close together as possible. The
// planner sees only the GPUs that the gang's tenant may have, node by node. Unbound virtual cells of a level are
// interchangeable; they are bound once the plan says how many of them are needed. Pure.

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/cells/hierarchy.h"

namespace larder::scheduler {

// The GPUs that one node of a virtual cell offers.
struct NodeOffer {
    const Hierarchy* hierarchy = nullptr;
    std::uint32_t hierarchy_index = 0;
    std::uint32_t virtual_cell = 0;  // its number; its offers are consecutive
    std::uint32_t level = 0;         // of the virtual cell
    bool pinned = false;             // the virtual cell is pinned
    std::uint32_t node = 0;          // in the hierarchy, or in the cell if that is not bound
    bool fresh = false;              // the cell is not bound
    std::uint32_t gpus = 0;
    std::uint32_t without_eviction = 0;   // of these, GPUs that need no eviction
    std::uint32_t virtual_cell_gpus = 0;  // GPUs that the whole virtual cell offers
    std::uint64_t mask = 0;               // the GPUs, in an offer to a job without a claim
    std::uint32_t near = kNone;           // rank of the node among the nodes near the gang's data; kNone: not near
};

struct OfferTaken {
    std::uint32_t offer = 0;
    std::uint32_t gpus = 0;
};

// Compares plans of different hierarchies. Less is better, in the order of the members.
struct PlanCost {
    std::uint32_t nodes = 0;
    bool takes_pinned = false;
    std::uint32_t levels_above_node = 0;  // of the smallest cell that contains the plan
    std::uint32_t left_over = 0;          // GPUs on the nodes taken
    bool fresh = false;
    std::uint32_t virtual_cell_gpus = 0;
    std::uint32_t evictions = 0;
    std::uint32_t near = kNone;
    auto operator<=>(const PlanCost&) const = default;
};

struct GangPlan {
    std::vector<OfferTaken> taken;  // empty: there are too few GPUs
    PlanCost cost;
};

// A gang that fits into a node goes where the fewest GPUs are left over, preferably into a bound virtual cell with the
// fewest GPUs to offer. A larger gang takes as few nodes as possible, within the smallest cell that allows it. Ties go
// to offers of cells that are not pinned, then to those with fewer evictions, then to those nearer the data.
// With `pods` (GangShape::pods), each pod lies in one offer.
GangPlan plan_gang(std::span<const NodeOffer> offers, std::uint32_t gpus, std::span<const std::uint32_t> pods = {});
// Like plan_gang(), but the gang lies within one cell of the level. The offers are of one hierarchy, each with GPUs of
// one such cell.
GangPlan plan_gang_within(std::span<const NodeOffer> offers, std::uint32_t level, std::uint32_t gpus,
                          std::span<const std::uint32_t> pods = {});

// Picks `count` of a node's GPUs in `from`, within the smallest cell that has enough. Among such cells it prefers the
// one with the fewest GPUs in `avoid`, then the one with the fewest left over.
std::uint64_t pick_gpus(const Hierarchy& hierarchy, std::uint64_t from, std::uint64_t avoid, std::uint32_t count);

}  // namespace larder::scheduler
