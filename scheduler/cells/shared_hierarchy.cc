#include "scheduler/cells/shared_hierarchy.h"

#include <algorithm>
#include <compare>
#include <utility>

#include "base/assert.h"

namespace larder::scheduler {

SharedHierarchy::SharedHierarchy(const CellConfig& config, std::uint32_t h)
    : cells_(config.hierarchies[h]), use_(cells_.nodes()), opportunistic_(cells_.levels()) {
    const std::size_t clusters = config.virtual_clusters.size();
    for (std::uint32_t level = cells_.node_level(); level < cells_.levels(); ++level) {
        opportunistic_[level].assign(cells_.cells_at(level), 0);
    }
    unbound_.assign(clusters, std::vector<std::set<std::uint32_t>>(cells_.levels()));
    unbound_counts_.assign(clusters, std::vector<std::int64_t>(cells_.levels()));
    first_of_.push_back(0);
    for (std::uint32_t c = 0; c < clusters; ++c) {
        const VirtualClusterConfig& cluster = config.virtual_clusters[c];
        for (const PinnedCell& pin : cluster.pinned) {
            if (pin.hierarchy != h) continue;
            cells_.claim(pin.level, 1);
            const bool bound = cells_.bind({pin.level, pin.index}, static_cast<std::uint32_t>(virtual_cells_.size()));
            LARDER_ASSERT(bound);
            virtual_cells_.push_back(
                {.cluster = c, .level = pin.level, .index = pin.index, .claimed_gpus = 0, .pinned = true});
        }
        for (std::uint32_t level = 0; level < cells_.levels(); ++level) {
            for (const CellClaim& claim : cluster.cells) {
                if (claim.hierarchy != h || claim.level != level) continue;
                for (std::uint32_t i = 0; i < claim.count; ++i) {
                    unbound_[c][level].insert(static_cast<std::uint32_t>(virtual_cells_.size()));
                    virtual_cells_.push_back({.cluster = c, .level = level, .index = kNone, .claimed_gpus = 0});
                }
            }
            unbound_counts_[c][level] = unbound(c, level);
        }
        first_of_.push_back(static_cast<std::uint32_t>(virtual_cells_.size()));
    }
    with_room_.resize(virtual_cells_.size() / 64 + 1);
    for (std::uint32_t number = 0; number < virtual_cells_.size(); ++number) note_room(number);
    for (const auto& claims : unbound_counts_) {
        for (std::uint32_t level = 0; level < cells_.levels(); ++level) {
            cells_.claim(level, static_cast<std::int32_t>(claims[level]));
        }
    }
    for (std::uint32_t level = 0; level < cells_.levels(); ++level) LARDER_ASSERT(cells_.spare(level) >= 0);
}

std::uint64_t SharedHierarchy::gpus_owned(std::uint32_t cluster, std::uint32_t node) const {
    const CellId cell{cells_.node_level(), node};
    const std::uint32_t above = cells_.virtual_cell_above(cell);
    if (above != kNone) return virtual_cells_[above].cluster == cluster ? cells_.gpus_of(cell) : 0;
    if (!cells_.holds_virtual_cells(cell)) return 0;
    std::uint64_t owned = 0;
    for (const std::uint32_t number : virtual_cells_in(cell)) {
        if (virtual_cells_[number].cluster == cluster)
            owned |= cells_.gpus_of({virtual_cells_[number].level, virtual_cells_[number].index});
    }
    return owned;
}

std::uint64_t SharedHierarchy::gpus_bound(std::uint32_t node) const {
    const CellId cell{cells_.node_level(), node};
    if (cells_.virtual_cell_above(cell) != kNone) return cells_.gpus_of(cell);
    if (!cells_.holds_virtual_cells(cell)) return 0;
    std::uint64_t bound = 0;
    for (const std::uint32_t number : virtual_cells_in(cell)) {
        bound |= cells_.gpus_of({virtual_cells_[number].level, virtual_cells_[number].index});
    }
    return bound;
}

std::vector<std::uint32_t> SharedHierarchy::virtual_cells_in(CellId cell) const {
    std::vector<std::uint32_t> found;
    for (std::uint32_t level = 0; level <= cell.level; ++level) {
        const std::uint32_t cells = cells_.cells_in(cell.level, level);
        for (std::uint32_t i = 0; i < cells; ++i) {
            const std::uint32_t number = cells_.virtual_cell_at({level, cell.index * cells + i});
            if (number != kNone) found.push_back(number);
        }
    }
    return found;
}

// Rates a physical cell for a virtual cell. Less is better.
struct SharedHierarchy::Rank {
    bool leaves_short = false;  // splits a cell without bad nodes that is needed whole
    std::uint32_t bad_nodes = 0;
    std::uint32_t evicted_gpus = 0;
    std::uint32_t split_from = 0;  // level
    std::uint32_t index = 0;
    auto operator<=>(const Rank&) const = default;
    bool perfect() const { return !leaves_short && bad_nodes == 0 && evicted_gpus == 0; }
};

std::uint32_t SharedHierarchy::opportunistic_in(CellId cell) const {
    if (cell.level >= cells_.node_level()) return opportunistic_[cell.level][cell.index];
    return count_of(use_[cells_.first_node(cell)].opportunistic & cells_.gpus_of(cell));
}

// nullopt: the cell cannot be bound, or has no healthy node.
std::optional<SharedHierarchy::Rank> SharedHierarchy::rank(CellId cell) const {
    if (!cells_.is_free(cell)) return std::nullopt;
    const CellId free_cell = cells_.free_cell_around(cell);
    for (std::uint32_t level = cell.level + 1; level <= free_cell.level; ++level) {
        if (cells_.spare(level) < 1) return std::nullopt;
    }
    Rank rank{.leaves_short = false,
              .bad_nodes = cells_.bad_nodes_in(cell),
              .evicted_gpus = opportunistic_in(cell),
              .split_from = free_cell.level,
              .index = cell.index};
    if (rank.bad_nodes >= cells_.node_count(cell.level)) return std::nullopt;
    if (rank.bad_nodes > 0 || cells_.bad_nodes() == 0) return rank;
    for (std::uint32_t level = cell.level + 1; level <= free_cell.level; ++level) {
        const CellId above{level, cells_.ancestor(cell, level)};
        if (cells_.bad_nodes_in(above) > 0) break;
        rank.leaves_short = rank.leaves_short || cells_.healthy_spare(level) < 1;
    }
    return rank;
}

std::optional<CellId> SharedHierarchy::find(std::uint32_t level, const BindPreference& preference) const {
    std::optional<CellId> best;
    Rank best_rank;
    const auto consider = [&](CellId cell) {
        const auto ranked = rank(cell);
        if (!ranked || (preference.only_healthy && ranked->bad_nodes > 0)) return false;
        if (best && best_rank <= *ranked) return false;
        best = cell;
        best_rank = *ranked;
        return ranked->perfect();
    };
    // Considers the cells of the level within a larger cell, or the one that contains it.
    const auto consider_in = [&](CellId within) {
        if (within.level <= level) return consider({level, cells_.ancestor(within, level)});
        const std::uint32_t cells = cells_.cells_in(within.level, level);
        for (std::uint32_t i = 0; i < cells; ++i) {
            if (consider({level, within.index * cells + i})) return true;
        }
        return false;
    };
    for (const std::uint32_t node : preference.near) {
        if (consider_in({cells_.node_level(), node})) return best;
    }
    if (preference.beside != kNone) {
        const CellId node{cells_.node_level(), preference.beside};
        constexpr std::uint32_t kCellsConsideredMax = 64;
        for (std::uint32_t high = cells_.node_level(); high < cells_.levels(); ++high) {
            if (high <= level) continue;
            if (cells_.cells_in(high, level) > kCellsConsideredMax) break;
            if (consider_in({high, cells_.ancestor(node, high)})) return best;
        }
    }
    for (std::uint32_t high = level; high < cells_.levels(); ++high) {
        if (high > level && cells_.spare(high) < 1) break;
        for (const std::uint32_t index : cells_.free_list(high)) {
            CellId cell{high, index};
            if (cells_.bad_nodes_in(cell) > 0) {
                if (consider_in(cell)) return best;
                continue;
            }
            while (cell.level > level) {  // descend to the child with the fewest opportunistic GPUs
                const std::uint32_t fan = cells_.cells_in(cell.level, cell.level - 1);
                CellId least{cell.level - 1, cell.index * fan};
                for (std::uint32_t i = 1; i < fan && opportunistic_in(least) > 0; ++i) {
                    const CellId child{cell.level - 1, cell.index * fan + i};
                    if (opportunistic_in(child) < opportunistic_in(least)) least = child;
                }
                cell = least;
            }
            if (consider(cell)) return best;
        }
    }
    return best;
}

std::uint32_t SharedHierarchy::bind_at(std::uint32_t cluster, CellId cell) {
    std::set<std::uint32_t>& unbound = unbound_[cluster][cell.level];
    if (unbound.empty()) return kNone;
    const std::uint32_t number = *unbound.begin();
    if (!cells_.bind(cell, number)) return kNone;
    unbound.erase(unbound.begin());
    --unbound_counts_[cluster][cell.level];
    virtual_cells_[number].index = cell.index;
    note_room(number);
    bound_lately_.push_back(number);
    return number;
}

void SharedHierarchy::unbind(std::uint32_t number) {
    VirtualCell& virtual_cell = virtual_cells_[number];
    LARDER_ASSERT(virtual_cell.index != kNone && !virtual_cell.pinned);
    cells_.unbind({virtual_cell.level, virtual_cell.index});
    unbound_[virtual_cell.cluster][virtual_cell.level].insert(number);
    ++unbound_counts_[virtual_cell.cluster][virtual_cell.level];
    virtual_cell.index = kNone;
    virtual_cell.claimed_gpus = 0;
    note_room(number);
    if (std::exchange(virtual_cell.doomed, false)) std::erase(doomed_, number);
}

std::uint32_t SharedHierarchy::bind(std::uint32_t cluster, std::uint32_t level, const BindPreference& preference) {
    if (unbound_[cluster][level].empty()) return kNone;
    const auto cell = find(level, preference);
    return cell ? bind_at(cluster, *cell) : kNone;
}

bool SharedHierarchy::bind_back(std::uint32_t number, CellId cell) {
    if (!cells_.bind(cell, number)) return false;
    unbound_[virtual_cells_[number].cluster][cell.level].erase(number);
    --unbound_counts_[virtual_cells_[number].cluster][cell.level];
    virtual_cells_[number].index = cell.index;
    note_room(number);
    return true;
}

// Binds the cell in place of the smaller cells of the same virtual cluster within it.
bool SharedHierarchy::bind_over(std::uint32_t cluster, CellId cell) {
    if (unbound_[cluster][cell.level].empty() || cells_.virtual_cell_above(cell) != kNone) return false;
    const std::vector<std::uint32_t> replaced =
        cells_.holds_virtual_cells(cell) ? virtual_cells_in(cell) : std::vector<std::uint32_t>{};
    for (const std::uint32_t number : replaced) {
        if (virtual_cells_[number].cluster != cluster || virtual_cells_[number].pinned) return false;
    }
    std::uint32_t claimed = 0;
    for (const std::uint32_t number : replaced) claimed += virtual_cells_[number].claimed_gpus;
    std::vector<VirtualCell> before;
    for (const std::uint32_t number : replaced) {
        before.push_back(virtual_cells_[number]);
        unbind(number);
    }
    const std::uint32_t bound = bind_at(cluster, cell);
    if (bound != kNone) {
        virtual_cells_[bound].claimed_gpus = claimed;
        note_room(bound);
        return true;
    }
    for (std::size_t i = 0; i < replaced.size(); ++i) {
        const bool back = bind_back(replaced[i], {before[i].level, before[i].index});
        LARDER_ASSERT(back);
        virtual_cells_[replaced[i]] = before[i];
        note_room(replaced[i]);
        if (before[i].doomed) doomed_.push_back(replaced[i]);
    }
    return false;
}

bool SharedHierarchy::cover(std::uint32_t cluster, std::uint32_t node, std::uint64_t gpus) {
    const std::uint32_t node_level = cells_.node_level();
    for (;;) {
        const std::uint64_t missing = gpus & ~gpus_owned(cluster, node);
        if (missing == 0) return true;
        const auto first = static_cast<std::uint32_t>(std::countr_zero(missing));
        const CellId gpu{0, node * cells_.node_gpus() + first};
        // The level of the smallest cell that contains all missing GPUs.
        std::uint32_t covering_level = 0;
        while (covering_level < node_level &&
               (missing & ~cells_.gpus_of({covering_level, cells_.ancestor(gpu, covering_level)})) != 0) {
            ++covering_level;
        }
        bool bound = false;
        for (std::uint32_t level = covering_level; level < cells_.levels() && !bound; ++level) {
            bound = bind_over(cluster, {level, cells_.ancestor(gpu, level)});
        }
        for (std::uint32_t level = covering_level; level-- > 0 && !bound;) {
            bound = bind_over(cluster, {level, cells_.ancestor(gpu, level)});
        }
        if (!bound) return false;
    }
}

bool SharedHierarchy::is_harmless(CellId cell) const {
    const auto ranked = rank(cell);
    return ranked && !ranked->leaves_short && ranked->bad_nodes == 0;
}

std::optional<CellId> SharedHierarchy::cell_to_cover(std::uint32_t cluster, std::uint32_t node) const {
    const CellId cell{cells_.node_level(), node};
    for (std::uint32_t level = cell.level; level < cells_.levels(); ++level) {
        const CellId wanted{level, cells_.ancestor(cell, level)};
        if (unbound(cluster, level) > 0 && is_harmless(wanted)) return wanted;
    }
    return std::nullopt;
}

void SharedHierarchy::cover_node(std::uint32_t cluster, std::uint32_t node) {
    const std::uint32_t node_level = cells_.node_level();
    const CellId cell{node_level, node};
    if (cells_.is_bad(node) || cells_.virtual_cell_above(cell) != kNone) return;
    if (const auto covering_cell = cell_to_cover(cluster, node)) {
        const std::uint32_t bound = bind_at(cluster, *covering_cell);
        LARDER_ASSERT(bound != kNone);
        return;
    }
    for (std::uint32_t level = node_level; level-- > 0;) {
        const std::uint32_t cells = cells_.cells_in(node_level, level);
        for (std::uint32_t i = 0; i < cells && unbound(cluster, level) > 0; ++i) {
            const CellId wanted{level, node * cells + i};
            if (is_harmless(wanted)) bind_at(cluster, wanted);
        }
    }
}

void SharedHierarchy::hold(std::uint32_t node, std::uint64_t gpus) {
    LARDER_ASSERT((use_[node].claimed & gpus) == 0);
    use_[node].claimed |= gpus;
    while (gpus != 0) {
        const auto gpu = static_cast<std::uint32_t>(std::countr_zero(gpus));
        const std::uint32_t number = cells_.virtual_cell_above({0, node * cells_.node_gpus() + gpu});
        LARDER_ASSERT(number != kNone);
        VirtualCell& virtual_cell = virtual_cells_[number];
        const std::uint64_t in_cell = virtual_cell.level >= cells_.node_level()
                                          ? gpus
                                          : gpus & cells_.gpus_of({virtual_cell.level, virtual_cell.index});
        virtual_cell.claimed_gpus += count_of(in_cell);
        note_room(number);
        if (virtual_cell.doomed) {
            virtual_cell.doomed = false;
            std::erase(doomed_, number);
        }
        gpus &= ~in_cell;
    }
}

void SharedHierarchy::drop(std::uint32_t node, std::uint64_t gpus) {
    LARDER_ASSERT((use_[node].claimed & gpus) == gpus);
    use_[node].claimed &= ~gpus;
    while (gpus != 0) {
        const auto gpu = static_cast<std::uint32_t>(std::countr_zero(gpus));
        const std::uint32_t number = cells_.virtual_cell_above({0, node * cells_.node_gpus() + gpu});
        LARDER_ASSERT(number != kNone);
        VirtualCell& virtual_cell = virtual_cells_[number];
        const std::uint64_t in_cell = virtual_cell.level >= cells_.node_level()
                                          ? gpus
                                          : gpus & cells_.gpus_of({virtual_cell.level, virtual_cell.index});
        virtual_cell.claimed_gpus -= count_of(in_cell);
        note_room(number);
        gpus &= ~in_cell;
        if (virtual_cell.claimed_gpus == 0 && !virtual_cell.pinned) unbind(number);
    }
}

void SharedHierarchy::note_room(std::uint32_t number) {
    const VirtualCell& virtual_cell = virtual_cells_[number];
    const std::uint64_t bit = std::uint64_t{1} << number % 64;
    const bool room = virtual_cell.index != kNone && virtual_cell.claimed_gpus < cells_.gpus_in(virtual_cell.level);
    with_room_[number / 64] = room ? with_room_[number / 64] | bit : with_room_[number / 64] & ~bit;
}

void SharedHierarchy::list_for_gang(std::uint32_t cluster, std::uint32_t gpus, std::size_t pods, bool fresh,
                                    std::vector<std::uint32_t>& into) const {
    into.clear();
    const std::uint32_t end = end_of(cluster);
    for (std::uint32_t number = first_of(cluster); number < end;) {
        const std::uint64_t rest = with_room_[number / 64] >> number % 64;
        if (rest == 0) {
            number = (number / 64 + 1) * 64;
            continue;
        }
        number += static_cast<std::uint32_t>(std::countr_zero(rest));
        if (number < end) into.push_back(number);
        ++number;
    }
    for (std::uint32_t level = 0; level < cells_.levels() && fresh; ++level) {
        auto left = std::max<std::size_t>(pods, (gpus + cells_.gpus_in(level) - 1) / cells_.gpus_in(level));
        for (auto next = unbound_[cluster][level].begin(); next != unbound_[cluster][level].end() && left > 0; ++next) {
            into.push_back(*next);
            --left;
        }
    }
    std::ranges::sort(into);
}

std::vector<CellId> SharedHierarchy::cells_of(std::uint32_t node, std::uint64_t gpus) const {
    std::vector<CellId> found;
    for (; gpus != 0; gpus &= gpus - 1) {
        const auto gpu = static_cast<std::uint32_t>(std::countr_zero(gpus));
        const std::uint32_t number = cells_.virtual_cell_above({0, node * cells_.node_gpus() + gpu});
        LARDER_ASSERT(number != kNone);
        const CellId cell{virtual_cells_[number].level, virtual_cells_[number].index};
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

void SharedHierarchy::unbind_unused() {
    for (const std::uint32_t number : bound_lately_) {
        if (virtual_cells_[number].index != kNone && virtual_cells_[number].claimed_gpus == 0 &&
            !virtual_cells_[number].doomed)
            unbind(number);
    }
    bound_lately_.clear();
}

// Returns the highest level with fewer healthy free cells than this virtual cluster alone may still claim; kNone: none.
std::uint32_t SharedHierarchy::highest_short_level(std::uint32_t cluster) const {
    for (std::uint32_t level = cells_.levels(); level-- > 0;) {
        if (cells_.healthy(level) < cells_.claims_within(unbound_counts_[cluster], level)) return level;
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
        const std::uint32_t number = bind_at(cluster, {level, index});
        if (number == kNone) continue;
        virtual_cells_[number].doomed = true;
        doomed_.push_back(number);
        return true;
    }
    return false;
}

void SharedHierarchy::unbind_bad_cells() {
    for (const std::uint32_t number : std::vector(doomed_)) unbind(number);
}

void SharedHierarchy::bind_bad_cells() {
    if (cells_.bad_nodes() == 0 && doomed_.empty()) return;
    // All are unbound first: a doomed cell whose node is back must not hide this node from other virtual clusters.
    std::vector<std::pair<std::uint32_t, CellId>> doomed_before;
    for (const std::uint32_t number : std::vector(doomed_)) {
        doomed_before.emplace_back(number, CellId{virtual_cells_[number].level, virtual_cells_[number].index});
        unbind(number);
    }
    for (const auto& [number, cell] : doomed_before) {
        const std::uint32_t short_level = highest_short_level(virtual_cells_[number].cluster);
        if (cells_.bad_nodes_in(cell) == 0 || short_level == kNone || cell.level < short_level) continue;
        const bool back = bind_back(number, cell);
        LARDER_ASSERT(back);
        virtual_cells_[number].doomed = true;
        doomed_.push_back(number);
    }
    for (std::uint32_t cluster = 0; cluster < unbound_counts_.size(); ++cluster) {
        for (;;) {
            std::uint32_t level = highest_short_level(cluster);
            if (level == kNone) break;
            while (level < cells_.levels() && unbound_counts_[cluster][level] == 0) ++level;
            LARDER_ASSERT(level < cells_.levels());
            if (!bind_bad_cell(cluster, level)) break;
        }
    }
}

bool SharedHierarchy::is_sound() const {
    if (!cells_.is_sound()) return false;
    std::vector<std::int64_t> claimed(cells_.levels());
    std::vector<std::uint32_t> claimed_gpus(virtual_cells_.size());
    for (std::uint32_t node = 0; node < use_.size(); ++node) {
        for (std::uint32_t gpu = 0; gpu < cells_.node_gpus(); ++gpu) {
            if ((use_[node].claimed >> gpu & 1) == 0) continue;
            const std::uint32_t number = cells_.virtual_cell_above({0, node * cells_.node_gpus() + gpu});
            if (number == kNone) return false;
            ++claimed_gpus[number];
        }
        if (bad_nodes_.contains(node) != cells_.is_bad(node)) return false;
    }
    for (std::uint32_t number = 0; number < virtual_cells_.size(); ++number) {
        const VirtualCell& virtual_cell = virtual_cells_[number];
        const bool bound = virtual_cell.index != kNone;
        if (!bound) ++claimed[virtual_cell.level];
        if (bound && cells_.virtual_cell_at({virtual_cell.level, virtual_cell.index}) != number) return false;
        if (!virtual_cell.pinned && unbound_[virtual_cell.cluster][virtual_cell.level].contains(number) == bound)
            return false;
        if (virtual_cell.claimed_gpus != claimed_gpus[number]) return false;
        if (has_room(number) != (bound && claimed_gpus[number] < cells_.gpus_in(virtual_cell.level))) return false;
        if (bound && !virtual_cell.pinned && !virtual_cell.doomed && virtual_cell.claimed_gpus == 0) return false;
        if (virtual_cell.doomed &&
            (!bound || virtual_cell.claimed_gpus > 0 || std::ranges::find(doomed_, number) == doomed_.end())) {
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
