#pragma once

// The cells of one hierarchy: which are free, who owns the others, and whether every virtual cluster can still get what
// it owns. Cells are named by level and index. Cells of one level are all alike, so a cell's children and GPUs follow
// from its index, and a bound virtual cell has the shape of its physical cell.
//
// Free cells are kept as in a buddy allocator: each free cell that lies in no larger free cell is in its level's list.
// Binding a smaller cell splits the listed cell, and cells that are free again merge. The cells that virtual clusters
// may still claim are counted at each level, including those within claims of higher levels. The invariant (HiveD, OSDI
// '20, section 3.3) is that each level has at least as many free cells as may still be claimed. Cells with bad nodes
// count as free in the invariant; healthy() counts the free cells without bad nodes. bind() refuses to break the
// invariant, so it may split any free cell, not only the smallest.

#include <bit>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "scheduler/cells/cell_config.h"

namespace larder::scheduler {

// Returns the number of GPUs in a mask.
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
    // Returns how many cells of level `low` are in a cell of level `high`.
    std::uint32_t cells_in(std::uint32_t high, std::uint32_t low) const { return gpus_in_[high] / gpus_in_[low]; }
    std::uint32_t ancestor(CellId cell, std::uint32_t level) const { return cell.index / cells_in(level, cell.level); }
    // The nodes of a cell: the first, and how many.
    std::uint32_t first_node(CellId cell) const { return cell.index * gpus_in_[cell.level] / node_gpus(); }
    std::uint32_t node_count(std::uint32_t level) const {
        return level <= node_level_ ? 1 : cells_in(level, node_level_);
    }
    // Returns the GPUs of a cell at or below node level, as a mask of its node's GPUs.
    std::uint64_t gpus_of(CellId cell) const;

    // Adds to the cells of a level that virtual clusters may still claim.
    void claim(std::uint32_t level, std::int32_t cells) { claimed_[level] += cells; }
    std::int64_t free(std::uint32_t level) const { return free_[level]; }
    std::int64_t healthy(std::uint32_t level) const { return healthy_[level]; }
    // Returns the free cells of a level in excess of those that may still be claimed.
    std::int64_t spare(std::uint32_t level) const { return free_[level] - claims_within(claimed_, level); }
    std::int64_t healthy_spare(std::uint32_t level) const { return healthy_[level] - claims_within(claimed_, level); }
    bool all_served() const;  // true if healthy cells suffice for all claims: healthy_spare() >= 0 at each level
    // Returns how many cells of the level the claims, given by level, contain.
    std::int64_t claims_within(std::span<const std::int64_t> claims, std::uint32_t level) const;

    // True if neither the cell, nor a part of it, nor a cell that contains it is bound.
    bool is_free(CellId cell) const {
        return bound_in_[cell.level][cell.index] == 0 && virtual_cell_above(cell) == kNone;
    }
    std::uint32_t bad_nodes_in(CellId cell) const;
    std::uint32_t bad_nodes() const { return bad_nodes_; }
    bool is_bad(std::uint32_t node) const { return bad_in_[node_level_][node] != 0; }

    // Binds a free cell to the virtual cell of number `virtual_cell`, which was a claim at its level. Returns false,
    // with nothing changed, if the cell is not free or some level would have fewer free cells than may still be
    // claimed.
    bool bind(CellId cell, std::uint32_t virtual_cell);
    void unbind(CellId cell);
    // Returns the number of the virtual cell that is bound to this cell or to one that contains it; kNone: none.
    std::uint32_t virtual_cell_above(CellId cell) const;
    // True if a virtual cell is bound to the cell or within it.
    bool holds_virtual_cells(CellId cell) const { return bound_in_[cell.level][cell.index] != 0; }
    std::uint32_t virtual_cell_at(CellId cell) const { return virtual_cells_[cell.level][cell.index]; }

    void set_bad(std::uint32_t node, bool bad);

    // The free cells of a level that lie in no larger free cell.
    const std::set<std::uint32_t>& free_list(std::uint32_t level) const { return lists_[level]; }
    // Returns the listed free cell that contains this free cell, or is it.
    CellId free_cell_around(CellId cell) const;

    // True if all counts and lists agree with a recount of the bound cells and the bad nodes.
    bool is_sound() const;

private:
    void count_free(CellId cell, std::int64_t sign);
    std::int64_t healthy_cells(CellId cell, std::uint32_t level) const;

    std::vector<std::uint32_t> gpus_in_;
    std::uint32_t node_level_;
    std::uint32_t gpus_;
    std::uint32_t bad_nodes_ = 0;
    // The index is the level.
    std::vector<std::int64_t> claimed_;
    std::vector<std::int64_t> free_;
    std::vector<std::int64_t> healthy_;
    std::vector<std::set<std::uint32_t>> lists_;
    // The indices are the level and the cell.
    std::vector<std::vector<std::uint32_t>> virtual_cells_;
    std::vector<std::vector<std::uint32_t>> bound_in_;  // virtual cells bound to the cell or within it
    std::vector<std::vector<std::uint32_t>> bad_in_;    // bad nodes in the cell; only for node_level_ and higher levels
};

}  // namespace larder::scheduler
