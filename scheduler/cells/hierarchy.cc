#include "scheduler/cells/hierarchy.h"

#include "base/assert.h"

namespace larder::scheduler {

Hierarchy::Hierarchy(const HierarchyConfig& config) : node_level_(config.node_level), gpus_(config.gpus()) {
    const std::uint32_t levels = config.levels_count();
    for (std::uint32_t level = 0; level < levels; ++level) gpus_in_.push_back(config.gpus_in(level));
    claimed_.assign(levels, 0);
    lists_.resize(levels);
    for (std::uint32_t level = 0; level < levels; ++level) {
        const std::uint32_t cells = cells_at(level);
        free_.push_back(cells);
        healthy_.push_back(cells);
        virtual_cells_.emplace_back(cells, kNone);
        bound_in_.emplace_back(cells, 0);
        bad_in_.emplace_back(level >= node_level_ ? cells : 0, 0);
    }
    for (std::uint32_t cell = 0; cell < cells_at(levels - 1); ++cell) lists_.back().insert(cell);
}

std::uint64_t Hierarchy::gpus_of(CellId cell) const {
    LARDER_ASSERT(cell.level <= node_level_);
    const std::uint32_t gpus = gpus_in_[cell.level];
    const std::uint64_t ones = gpus == 64 ? ~0ULL : (1ULL << gpus) - 1;
    return ones << (cell.index % cells_in(node_level_, cell.level) * gpus);
}

std::int64_t Hierarchy::claims_within(std::span<const std::int64_t> claims, std::uint32_t level) const {
    std::int64_t cells = 0;
    for (std::uint32_t high = level; high < levels(); ++high) cells += claims[high] * cells_in(high, level);
    return cells;
}

bool Hierarchy::all_served() const {
    if (bad_nodes_ == 0) return true;
    for (std::uint32_t level = 0; level < levels(); ++level) {
        if (healthy_spare(level) < 0) return false;
    }
    return true;
}

std::uint32_t Hierarchy::bad_nodes_in(CellId cell) const {
    if (bad_nodes_ == 0) return 0;
    return cell.level >= node_level_ ? bad_in_[cell.level][cell.index] : bad_in_[node_level_][first_node(cell)];
}

std::uint32_t Hierarchy::virtual_cell_above(CellId cell) const {
    for (std::uint32_t level = cell.level; level < levels(); ++level) {
        const std::uint32_t virtual_cell = virtual_cells_[level][ancestor(cell, level)];
        if (virtual_cell != kNone) return virtual_cell;
    }
    return kNone;
}

// Returns how many cells of the level within a cell have no bad node.
std::int64_t Hierarchy::healthy_cells(CellId cell, std::uint32_t level) const {
    const std::uint32_t cells = cells_in(cell.level, level);
    const std::uint32_t bad = bad_nodes_in(cell);
    if (bad == 0) return cells;
    if (level <= node_level_) {
        return cell.level <= node_level_ ? 0 : cells - std::int64_t{bad} * cells_in(node_level_, level);
    }
    std::int64_t healthy = 0;
    for (std::uint32_t i = 0; i < cells; ++i) healthy += bad_in_[level][cell.index * cells + i] == 0 ? 1 : 0;
    return healthy;
}

// Updates the counts when a cell stops being free (-1) or is free again (+1). Call it while bound_in_ does not count
// the cell.
void Hierarchy::count_free(CellId cell, std::int64_t sign) {
    for (std::uint32_t level = 0; level <= cell.level; ++level) {
        free_[level] += sign * cells_in(cell.level, level);
        healthy_[level] += sign * healthy_cells(cell, level);
    }
    for (std::uint32_t level = cell.level + 1; level < levels(); ++level) {
        const CellId above{level, ancestor(cell, level)};
        if (bound_in_[level][above.index] != 0) return;
        free_[level] += sign;
        if (bad_nodes_in(above) == 0) healthy_[level] += sign;
    }
}

CellId Hierarchy::free_cell_around(CellId cell) const {
    while (cell.level + 1 < levels() && bound_in_[cell.level + 1][ancestor(cell, cell.level + 1)] == 0) {
        cell = {cell.level + 1, ancestor(cell, cell.level + 1)};
    }
    return cell;
}

bool Hierarchy::bind(CellId cell, std::uint32_t virtual_cell) {
    if (!is_free(cell)) return false;
    // Splitting takes one free cell from each level up to that of the listed cell.
    const CellId free_cell = free_cell_around(cell);
    for (std::uint32_t level = cell.level + 1; level <= free_cell.level; ++level) {
        if (spare(level) < 1) return false;
    }
    count_free(cell, -1);
    claimed_[cell.level] -= 1;
    LARDER_ASSERT(claimed_[cell.level] >= 0);
    lists_[free_cell.level].erase(free_cell.index);
    for (std::uint32_t level = free_cell.level; level > cell.level; --level) {
        const std::uint32_t fan = cells_in(level, level - 1);
        const std::uint32_t first = ancestor(cell, level) * fan;
        const std::uint32_t on_path = ancestor(cell, level - 1);
        for (std::uint32_t child = first; child < first + fan; ++child) {
            if (child != on_path) lists_[level - 1].insert(child);
        }
    }
    virtual_cells_[cell.level][cell.index] = virtual_cell;
    for (std::uint32_t level = cell.level; level < levels(); ++level) ++bound_in_[level][ancestor(cell, level)];
    LARDER_ASSERT(spare(cell.level) >= 0);
    return true;
}

void Hierarchy::unbind(CellId cell) {
    LARDER_ASSERT(virtual_cells_[cell.level][cell.index] != kNone);
    virtual_cells_[cell.level][cell.index] = kNone;
    for (std::uint32_t level = cell.level; level < levels(); ++level) --bound_in_[level][ancestor(cell, level)];
    count_free(cell, +1);
    claimed_[cell.level] += 1;
    const CellId free_cell = free_cell_around(cell);
    for (std::uint32_t level = cell.level; level < free_cell.level; ++level) {
        const std::uint32_t fan = cells_in(level + 1, level);
        const std::uint32_t first = ancestor(cell, level + 1) * fan;
        for (std::uint32_t child = first; child < first + fan; ++child) lists_[level].erase(child);
    }
    lists_[free_cell.level].insert(free_cell.index);
}

void Hierarchy::set_bad(std::uint32_t node, bool bad) {
    if (is_bad(node) == bad) return;
    const std::int64_t sign = bad ? -1 : 1;
    const CellId cell{node_level_, node};
    if (virtual_cell_above(cell) == kNone) {
        for (std::uint32_t level = 0; level < node_level_; ++level) {
            const std::uint32_t cells = cells_in(node_level_, level);
            for (std::uint32_t i = 0; i < cells; ++i) {
                if (is_free({level, node * cells + i})) healthy_[level] += sign;
            }
        }
    }
    for (std::uint32_t level = node_level_; level < levels(); ++level) {
        const std::uint32_t above = ancestor(cell, level);
        std::uint32_t& count = bad_in_[level][above];
        if (!bad) --count;
        if (count == 0 && is_free({level, above})) healthy_[level] += sign;
        if (bad) ++count;
    }
    bad ? ++bad_nodes_ : --bad_nodes_;
}

bool Hierarchy::is_sound() const {
    for (std::uint32_t level = 0; level < levels(); ++level) {
        std::int64_t free = 0;
        std::int64_t healthy = 0;
        for (std::uint32_t index = 0; index < cells_at(level); ++index) {
            const CellId cell{level, index};
            std::uint32_t bound_cells = 0;
            for (std::uint32_t low = 0; low <= level; ++low) {
                const std::uint32_t cells = cells_in(level, low);
                for (std::uint32_t i = 0; i < cells; ++i)
                    bound_cells += virtual_cells_[low][index * cells + i] == kNone ? 0 : 1;
            }
            bool nodes_bad = false;
            for (std::uint32_t n = first_node(cell); n < first_node(cell) + node_count(level); ++n) {
                nodes_bad = nodes_bad || is_bad(n);
            }
            const bool unbound = bound_cells == 0 && virtual_cell_above(cell) == kNone;
            const bool in_larger = unbound && level + 1 < levels() && is_free({level + 1, ancestor(cell, level + 1)});
            if (bound_cells != bound_in_[level][index] || unbound != is_free(cell)) return false;
            if (lists_[level].contains(index) != (unbound && !in_larger)) return false;
            if (virtual_cells_[level][index] != kNone &&
                (bound_cells != 1 ||
                 (level + 1 < levels() && virtual_cell_above({level + 1, ancestor(cell, level + 1)}) != kNone)))
                return false;
            free += unbound ? 1 : 0;
            healthy += unbound && !nodes_bad ? 1 : 0;
        }
        if (free != free_[level] || healthy != healthy_[level] || spare(level) < 0) return false;
    }
    return true;
}

}  // namespace larder::scheduler
