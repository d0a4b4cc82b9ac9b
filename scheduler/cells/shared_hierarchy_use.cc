// The part of SharedHierarchy for the use of nodes, bad nodes and consistency checks.

#include <algorithm>

#include "base/assert.h"
#include "scheduler/cells/shared_hierarchy.h"

namespace larder::scheduler {
void SharedHierarchy::hold(std::uint32_t node, std::uint64_t gpus) {
    LARDER_ASSERT((use_[node].held & gpus) == 0);
    use_[node].held |= gpus;
    while (gpus != 0) {
        const auto gpu = static_cast<std::uint32_t>(std::countr_zero(gpus));
        const std::uint32_t number = cells_.root_above({0, node * cells_.node_gpus() + gpu});
        LARDER_ASSERT(number != kNone);
        VirtualCell& root = roots_[number];
        const std::uint64_t in_root =
            root.level >= cells_.node_level() ? gpus : gpus & cells_.gpus_of({root.level, root.index});
        root.held_gpus += count_of(in_root);
        note_room(number);
        if (root.doomed) {
            root.doomed = false;
            std::erase(doomed_, number);
        }
        gpus &= ~in_root;
    }
}

void SharedHierarchy::drop(std::uint32_t node, std::uint64_t gpus) {
    LARDER_ASSERT((use_[node].held & gpus) == gpus);
    use_[node].held &= ~gpus;
    while (gpus != 0) {
        const auto gpu = static_cast<std::uint32_t>(std::countr_zero(gpus));
        const std::uint32_t number = cells_.root_above({0, node * cells_.node_gpus() + gpu});
        LARDER_ASSERT(number != kNone);
        VirtualCell& root = roots_[number];
        const std::uint64_t in_root =
            root.level >= cells_.node_level() ? gpus : gpus & cells_.gpus_of({root.level, root.index});
        root.held_gpus -= count_of(in_root);
        note_room(number);
        gpus &= ~in_root;
        if (root.held_gpus == 0 && !root.pinned) unbind(number);
    }
}

void SharedHierarchy::note_room(std::uint32_t number) {
    const VirtualCell& root = roots_[number];
    const std::uint64_t bit = std::uint64_t{1} << number % 64;
    const bool room = root.index != kNone && root.held_gpus < cells_.gpus_in(root.level);
    with_room_[number / 64] = room ? with_room_[number / 64] | bit : with_room_[number / 64] & ~bit;
}

void SharedHierarchy::list_for_gang(std::uint32_t cluster, std::uint32_t gpus, bool fresh,
                                    std::vector<std::uint32_t>& into) const {
    into.clear();
    const std::uint32_t end = end_of(cluster);
    for (std::uint32_t root = first_of(cluster); root < end;) {
        const std::uint64_t rest = with_room_[root / 64] >> root % 64;
        if (rest == 0) {
            root = (root / 64 + 1) * 64;
            continue;
        }
        root += static_cast<std::uint32_t>(std::countr_zero(rest));
        if (root < end) into.push_back(root);
        ++root;
    }
    for (std::uint32_t level = 0; level < cells_.levels() && fresh; ++level) {
        std::uint32_t left = (gpus + cells_.gpus_in(level) - 1) / cells_.gpus_in(level);
        for (auto root = unbound_[cluster][level].begin(); root != unbound_[cluster][level].end() && left > 0; ++root) {
            into.push_back(*root);
            --left;
        }
    }
    std::ranges::sort(into);
}

std::vector<CellId> SharedHierarchy::cells_of(std::uint32_t node, std::uint64_t gpus) const {
    std::vector<CellId> found;
    for (; gpus != 0; gpus &= gpus - 1) {
        const auto gpu = static_cast<std::uint32_t>(std::countr_zero(gpus));
        const std::uint32_t number = cells_.root_above({0, node * cells_.node_gpus() + gpu});
        LARDER_ASSERT(number != kNone);
        const CellId cell{roots_[number].level, roots_[number].index};
        if (found.empty() || found.back() != cell) found.push_back(cell);
    }
    return found;
}

void SharedHierarchy::add_opportunistic(std::uint32_t node, std::uint64_t gpus) {
    LARDER_ASSERT((use_[node].opportunistic & gpus) == 0);
    use_[node].opportunistic |= gpus;
    const CellId cell{cells_.node_level(), node};
    for (std::uint32_t level = cell.level; level < cells_.levels(); ++level) {
        opportunistic_[level][cells_.ancestor(cell, level)] += count_of(gpus);
    }
}

void SharedHierarchy::remove_opportunistic(std::uint32_t node, std::uint64_t gpus) {
    LARDER_ASSERT((use_[node].opportunistic & gpus) == gpus);
    use_[node].opportunistic &= ~gpus;
    const CellId cell{cells_.node_level(), node};
    for (std::uint32_t level = cell.level; level < cells_.levels(); ++level) {
        opportunistic_[level][cells_.ancestor(cell, level)] -= count_of(gpus);
    }
}

void SharedHierarchy::set_bad(std::uint32_t node, bool bad) {
    cells_.set_bad(node, bad);
    bad ? void(bad_nodes_.insert(node)) : void(bad_nodes_.erase(node));
}

void SharedHierarchy::settle() {
    for (const std::uint32_t root : bound_lately_) {
        if (roots_[root].index != kNone && roots_[root].held_gpus == 0 && !roots_[root].doomed) unbind(root);
    }
    bound_lately_.clear();
}

// Returns the highest level with fewer healthy free cells than this virtual cluster alone may still claim; kNone: none.
std::uint32_t SharedHierarchy::highest_short_level(std::uint32_t cluster) const {
    for (std::uint32_t level = cells_.levels(); level-- > 0;) {
        if (cells_.healthy(level) < cells_.claims_within(claims_[cluster], level)) return level;
    }
    return kNone;
}

// Dooms a virtual cell of the level: binds it to the cell with the most bad nodes that can be bound. False: there is
// none.
bool SharedHierarchy::bind_bad_cell(std::uint32_t cluster, std::uint32_t level) {
    std::set<std::pair<std::int64_t, std::uint32_t>> candidates;
    for (const std::uint32_t node : bad_nodes_) {
        if (level >= cells_.node_level()) {
            const CellId cell{level, cells_.ancestor({cells_.node_level(), node}, level)};
            candidates.emplace(-std::int64_t{cells_.bad_nodes_in(cell)}, cell.index);
            continue;
        }
        const std::uint32_t cells = cells_.cells_in(cells_.node_level(), level);
        for (std::uint32_t i = 0; i < cells; ++i) candidates.emplace(-1, node * cells + i);
    }
    for (const auto& [bad, index] : candidates) {
        const std::uint32_t root = bind_at(cluster, {level, index});
        if (root == kNone) continue;
        roots_[root].doomed = true;
        doomed_.push_back(root);
        return true;
    }
    return false;
}

void SharedHierarchy::unbind_bad_cells() {
    for (const std::uint32_t number : std::vector(doomed_)) unbind(number);
}

void SharedHierarchy::bind_bad_cells() {
    if (cells_.bad_nodes() == 0 && doomed_.empty()) return;
    for (const std::uint32_t number : std::vector(doomed_)) {
        const VirtualCell root = roots_[number];
        const CellId cell{root.level, root.index};
        unbind(number);
        if (cells_.bad_nodes_in(cell) == 0 || highest_short_level(root.cluster) == kNone) continue;
        const bool back = bind_back(number, cell);
        LARDER_ASSERT(back);
        roots_[number].doomed = true;
        doomed_.push_back(number);
    }
    for (std::uint32_t cluster = 0; cluster < claims_.size(); ++cluster) {
        for (;;) {
            std::uint32_t level = highest_short_level(cluster);
            if (level == kNone) break;
            while (level < cells_.levels() && claims_[cluster][level] == 0) ++level;
            LARDER_ASSERT(level < cells_.levels());
            if (!bind_bad_cell(cluster, level)) break;
        }
    }
}

bool SharedHierarchy::sound() const {
    if (!cells_.sound()) return false;
    std::vector<std::int64_t> claimed(cells_.levels());
    std::vector<std::uint32_t> held(roots_.size());
    for (std::uint32_t node = 0; node < use_.size(); ++node) {
        for (std::uint32_t gpu = 0; gpu < cells_.node_gpus(); ++gpu) {
            if ((use_[node].held >> gpu & 1) == 0) continue;
            const std::uint32_t root = cells_.root_above({0, node * cells_.node_gpus() + gpu});
            if (root == kNone) return false;
            ++held[root];
        }
        if (bad_nodes_.contains(node) != cells_.is_bad(node)) return false;
    }
    for (std::uint32_t number = 0; number < roots_.size(); ++number) {
        const VirtualCell& root = roots_[number];
        const bool bound = root.index != kNone;
        if (!bound) ++claimed[root.level];
        if (bound && cells_.root_at({root.level, root.index}) != number) return false;
        if (!root.pinned && unbound_[root.cluster][root.level].contains(number) == bound) return false;
        if (root.held_gpus != held[number]) return false;
        if (has_room(number) != (bound && held[number] < cells_.gpus_in(root.level))) return false;
        if (bound && !root.pinned && !root.doomed && root.held_gpus == 0) return false;
        if (root.doomed && (!bound || root.held_gpus > 0 || std::ranges::find(doomed_, number) == doomed_.end())) {
            return false;
        }
    }
    for (std::uint32_t level = 0; level < cells_.levels(); ++level) {
        if (cells_.spare(level) != cells_.free(level) - cells_.claims_within(claimed, level)) return false;
        if (level < cells_.node_level()) continue;
        for (std::uint32_t index = 0; index < cells_.cells_at(level); ++index) {
            const std::uint32_t first = cells_.first_node({level, index});
            std::uint32_t gpus = 0;
            for (std::uint32_t n = first; n < first + cells_.node_count(level); ++n) {
                gpus += count_of(use_[n].opportunistic);
            }
            if (gpus != opportunistic_[level][index]) return false;
        }
    }
    return true;
}

}  // namespace larder::scheduler
