#pragma once

// The cells of one hierarchy: which are free, whose the others are, and whether every virtual cluster can still be
// given what it owns. Cells are named by level and index; those of one level are all alike, so a cell's children and
// its GPUs follow from its index, and a virtual cell that is bound to a physical one has just its shape.
//
// Free cells are kept as a buddy allocator keeps blocks: each free cell that lies in no larger free one is in its
// level's list; binding a smaller cell splits it, and cells that are free again merge. What virtual clusters may still
// claim is counted at each level, cells of higher levels included; the invariant (HiveD, OSDI '20, section 3.3) is that
// at each level no fewer are free. Bad nodes count as free there: they are cells all the same; healthy() counts the
// cells without any. bind() refuses what would break the invariant, and so can split any cell, not only the smallest.

#include <bit>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "scheduler/cells/cell_config.h"

namespace larder::scheduler {

// GPUs in a mask of them.
inline std::uint32_t count_of(std::uint64_t gpus) {
    return static_cast<std::uint32_t>(std::popcount(gpus));
}

struct CellId {
    std::uint32_t level = 0;
    std::uint32_t index = 0;
    bool operator==(const CellId&) const = default;
};

inline constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

class Hierarchy {
public:
    explicit Hierarchy(const HierarchyConfig& config);

    std::uint32_t levels() const { return static_cast<std::uint32_t>(gpus_in_.size()); }
    std::uint32_t node_level() const { return node_level_; }
    std::uint32_t nodes() const { return cells_at(node_level_); }
    std::uint32_t gpus_in(std::uint32_t level) const { return gpus_in_[level]; }
    std::uint32_t node_gpus() const { return gpus_in_[node_level_]; }
    std::uint32_t cells_at(std::uint32_t level) const { return gpus_ / gpus_in_[level]; }
    // Cells of the lower level in one of the higher.
    std::uint32_t cells_in(std::uint32_t high, std::uint32_t low) const { return gpus_in_[high] / gpus_in_[low]; }
    std::uint32_t ancestor(CellId cell, std::uint32_t level) const { return cell.index / cells_in(level, cell.level); }
    // The nodes that a cell lies on: the first, and how many.
    std::uint32_t first_node(CellId cell) const { return cell.index * gpus_in_[cell.level] / node_gpus(); }
    std::uint32_t node_count(std::uint32_t level) const {
        return level <= node_level_ ? 1 : cells_in(level, node_level_);
    }
    // The GPUs of its one node that a cell of node level or below has.
    std::uint64_t gpus_of(CellId cell) const;

    // What all virtual clusters may still claim at a level.
    void claim(std::uint32_t level, std::int32_t cells) { claimed_[level] += cells; }
    std::int64_t free(std::uint32_t level) const { return free_[level]; }
    std::int64_t healthy(std::uint32_t level) const { return healthy_[level]; }
    // Free cells over what may still be claimed, at a level.
    std::int64_t spare(std::uint32_t level) const { return free_[level] - claims_within(claimed_, level); }
    std::int64_t healthy_spare(std::uint32_t level) const { return healthy_[level] - claims_within(claimed_, level); }
    bool all_served() const;  // no bad node comes into anyone's way: healthy_spare() >= 0 at each level
    // Of claims by level: how many cells of the level they hold.
    std::int64_t claims_within(std::span<const std::int64_t> claims, std::uint32_t level) const;

    // Whether nobody has it, any part of it, or what holds it.
    bool is_free(CellId cell) const { return bound_in_[cell.level][cell.index] == 0 && root_above(cell) == kNone; }
    std::uint32_t bad_nodes_in(CellId cell) const;
    std::uint32_t bad_nodes() const { return bad_nodes_; }
    bool is_bad(std::uint32_t node) const { return bad_in_[node_level_][node] != 0; }

    // Gives a free cell to a virtual one (`root`: its number), which was a claim at its level. False, with nothing
    // changed: it is not free, or some level would have fewer free cells than may still be claimed.
    bool bind(CellId cell, std::uint32_t root);
    void unbind(CellId cell);
    // The virtual cell that this one, or what holds it, is bound to; kNone: there is none.
    std::uint32_t root_above(CellId cell) const;
    // Any virtual cell within it?
    bool holds_roots(CellId cell) const { return bound_in_[cell.level][cell.index] != 0; }
    std::uint32_t root_at(CellId cell) const { return root_[cell.level][cell.index]; }

    void set_bad(std::uint32_t node, bool bad);

    // The free cells of a level that lie in no larger free one.
    const std::set<std::uint32_t>& free_list(std::uint32_t level) const { return lists_[level]; }
    // The free cell in a list that holds this free one, or is it.
    CellId listed(CellId cell) const;

    // Whether all of the above agrees with what is bound and bad, counted anew.
    bool sound() const;

private:
    void count_free(CellId cell, std::int64_t sign);
    std::int64_t healthy_cells(CellId cell, std::uint32_t level) const;

    std::vector<std::uint32_t> gpus_in_;
    std::uint32_t node_level_;
    std::uint32_t gpus_;
    std::uint32_t bad_nodes_ = 0;
    // By level.
    std::vector<std::int64_t> claimed_;
    std::vector<std::int64_t> free_;
    std::vector<std::int64_t> healthy_;
    std::vector<std::set<std::uint32_t>> lists_;
    // By level and cell.
    std::vector<std::vector<std::uint32_t>> root_;
    std::vector<std::vector<std::uint32_t>> bound_in_;  // virtual cells bound to it or within it
    std::vector<std::vector<std::uint32_t>> bad_in_;    // bad nodes in it; of levels from the node's up
};

}  // namespace larder::scheduler
