#pragma once

// Tracks the GPUs that Cells handed out in random operations, and recomputes the state of every virtual cluster from
// the configuration, without the algorithm under test.

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "scheduler/cells/cells.h"
#include "scheduler/placement/pods.h"
#include "tests/unit/scheduler/cells/random_cells.h"

namespace larder::scheduler::tests {

struct PlacedJob {
    std::uint32_t tenant = 0;
    std::uint32_t gpu_type = 0;
    std::int32_t priority = 0;
    bool opportunistic = false;
    Placement placement;
};

// The free capacity of a virtual cluster, counted from its cells.
struct CountedRoom {
    std::uint32_t gpus = 0;        // healthy GPUs that its jobs do not hold, including those of unbound cells
    std::uint32_t bound_gpus = 0;  // without the GPUs of unbound cells
    std::vector<std::vector<std::uint32_t>> by_node;  // free GPUs of each of its nodes, by hierarchy
    bool all_served = true;  // at every level, enough healthy cells are free for all that may be claimed

    // The smallest number of nodes that a gang of `wanted` GPUs fits on: nodes of one hierarchy if one has enough.
    std::size_t least_nodes(std::uint32_t wanted) const {
        std::size_t least = 0;
        std::vector<std::uint32_t> all;
        for (const auto& nodes : by_node) {
            const std::size_t here = least_nodes(nodes, wanted);
            if (here > 0 && (least == 0 || here < least)) least = here;
            all.insert(all.end(), nodes.begin(), nodes.end());
        }
        return least > 0 ? least : least_nodes(all, wanted);
    }

    // 0: they have too few GPUs.
    static std::size_t least_nodes(std::vector<std::uint32_t> gpus, std::uint32_t wanted) {
        std::ranges::sort(gpus, std::ranges::greater{});
        std::uint32_t got = 0;
        for (std::size_t nodes = 0; nodes < gpus.size();) {
            got += gpus[nodes++];
            if (got >= wanted) return nodes;
        }
        return 0;
    }
    bool holds_pods(std::span<const std::uint32_t> pods) const {
        std::vector<std::uint32_t> all;
        for (const auto& nodes : by_node) all.insert(all.end(), nodes.begin(), nodes.end());
        std::ranges::sort(all, std::ranges::greater{});
        return !pack_pods(all, pods).empty();
    }
    bool fits_one_hierarchy(std::uint32_t wanted) const {
        return std::ranges::any_of(by_node, [&](const auto& nodes) { return least_nodes(nodes, wanted) > 0; });
    }
};

class CountedWorld {
public:
    explicit CountedWorld(CellConfig config) : config_(std::move(config)), cluster_(cluster_of(config_)) {
        std::vector<std::string> tenants;
        for (const auto& owner : config_.virtual_clusters) tenants.push_back(owner.name);
        tenants.push_back("nobody");
        tenants_ = static_cast<std::uint32_t>(tenants.size());
        auto made = Cells::create(config_, cluster_, tenants);
        EXPECT_TRUE(made.has_value());
        cells_ = std::move(*made);
        bad_.resize(cluster_.nodes.size());
        std::uint32_t node = 0;
        for (const HierarchyConfig& hierarchy : config_.hierarchies) {
            first_node_.push_back(node);
            node += static_cast<std::uint32_t>(hierarchy.nodes.size());
        }
    }

    // Checks that every virtual cluster's cells match the config, that bound cells do not overlap, and that at each
    // level enough physical cells are left for all cells that may still be claimed.
    void check_shares() {
        std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> owned;
        std::vector<std::vector<int>> gpu_owner;
        for (const auto& hierarchy : config_.hierarchies) gpu_owner.emplace_back(hierarchy.gpus(), -1);
        states_ = cells_->virtual_cells();
        for (const VirtualCellState& state : states_) {
            ++owned[{state.cluster, state.hierarchy, state.cell.level}];
            doomed_ += state.cell.doomed ? 1 : 0;
            if (state.cell.index == kNone) continue;
            const std::uint32_t size = config_.hierarchies[state.hierarchy].gpus_in(state.cell.level);
            for (std::uint32_t gpu = 0; gpu < size; ++gpu) {
                int& owner = gpu_owner[state.hierarchy][state.cell.index * size + gpu];
                ASSERT_EQ(owner, -1);
                owner = static_cast<int>(state.cluster);
            }
        }
        for (std::uint32_t c = 0; c < config_.virtual_clusters.size(); ++c) {
            std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> configured;
            for (const CellClaim& claim : config_.virtual_clusters[c].cells) {
                configured[{claim.hierarchy, claim.level}] += claim.count;
            }
            for (const PinnedCell& pin : config_.virtual_clusters[c].pinned) ++configured[{pin.hierarchy, pin.level}];
            for (const auto& [at, count] : configured) ASSERT_EQ((owned[{c, at.first, at.second}]), count);
        }
        for (std::uint32_t h = 0; h < config_.hierarchies.size(); ++h) {
            const auto spare = spare_cells(h, gpu_owner[h], false);
            ASSERT_GE(*std::ranges::min_element(spare), 0);
        }
        for (const auto& [id, job] : jobs_) {
            if (job.opportunistic) continue;
            for (const NodeGpus& share : job.placement) {
                const std::uint32_t h = hierarchy_of(share.node);
                const std::uint32_t gpus = cluster_.nodes[share.node].gpus;
                for (std::uint32_t gpu = 0; gpu < gpus; ++gpu) {
                    if ((share.gpus >> gpu & 1) == 0) continue;
                    ASSERT_EQ(gpu_owner[h][(share.node - first_node_[h]) * gpus + gpu], static_cast<int>(job.tenant));
                }
            }
        }
        gpu_owner_ = std::move(gpu_owner);
    }

protected:
    bool is_bad(std::uint32_t h, std::uint32_t node) const { return bad_[first_node_[h] + node]; }

    std::uint32_t hierarchy_of(std::uint32_t node) const {
        std::uint32_t h = 0;
        while (h + 1 < first_node_.size() && first_node_[h + 1] <= node) ++h;
        return h;
    }

    // Returns for each level how many unowned cells (with `healthy`, only cells without bad nodes) are left once all
    // cells are bound that may still be claimed.
    std::vector<std::int64_t> spare_cells(std::uint32_t h, const std::vector<int>& owner, bool healthy) const {
        const HierarchyConfig& hierarchy = config_.hierarchies[h];
        std::vector<std::int64_t> spare(hierarchy.levels_count());
        const std::uint32_t per_node = hierarchy.gpus_in(hierarchy.node_level);
        for (std::uint32_t level = 0; level < hierarchy.levels_count(); ++level) {
            const std::uint32_t size = hierarchy.gpus_in(level);
            for (std::uint32_t first = 0; first < hierarchy.gpus(); first += size) {
                bool free = true;
                for (std::uint32_t gpu = first; gpu < first + size; ++gpu) {
                    free = free && owner[gpu] == -1 && !(healthy && is_bad(h, gpu / per_node));
                }
                spare[level] += free ? 1 : 0;
            }
            for (const VirtualCellState& state : states_) {
                if (state.hierarchy != h || state.cell.index != kNone || state.cell.level < level) continue;
                spare[level] -= hierarchy.gpus_in(state.cell.level) / size;
            }
        }
        return spare;
    }

    // Returns a bit mask of the node's GPUs that jobs with a claim hold.
    std::uint64_t claimed_gpus(std::uint32_t node) const {
        std::uint64_t bits = 0;
        for (const auto& [id, job] : jobs_) {
            if (job.opportunistic) continue;
            for (const NodeGpus& share : job.placement) bits |= share.node == node ? share.gpus : 0;
        }
        return bits;
    }

    CountedRoom room(std::uint32_t cluster, std::uint32_t gpu_type) const {
        CountedRoom room;
        room.by_node.resize(config_.hierarchies.size());
        for (std::uint32_t h = 0; h < config_.hierarchies.size(); ++h) {
            const HierarchyConfig& hierarchy = config_.hierarchies[h];
            if (cluster_.nodes[first_node_[h]].gpu_type != gpu_type) continue;
            const auto spare = spare_cells(h, gpu_owner_[h], true);
            room.all_served = room.all_served && *std::ranges::min_element(spare) >= 0;
            const std::uint32_t per_node = hierarchy.gpus_in(hierarchy.node_level);
            for (const VirtualCellState& state : states_) {
                if (state.hierarchy != h || state.cluster != cluster) continue;
                const std::uint32_t size = hierarchy.gpus_in(state.cell.level);
                if (state.cell.index == kNone) {
                    for (std::uint32_t left = size; left > 0; left -= std::min(left, per_node)) {
                        room.by_node[h].push_back(std::min(left, per_node));
                    }
                    room.gpus += size;
                    continue;
                }
                if (state.cell.doomed) {  // it may be bound elsewhere
                    room.all_served = false;
                    room.gpus += size;
                }
                const std::uint32_t first = state.cell.index * size;
                for (std::uint32_t gpu = first; gpu < first + size;) {
                    const std::uint32_t node = gpu / per_node;
                    const std::uint64_t taken = claimed_gpus(first_node_[h] + node);
                    std::uint32_t left = 0;
                    for (; gpu < first + size && gpu / per_node == node; ++gpu) {
                        left += (taken >> (gpu % per_node) & 1) == 0 && !is_bad(h, node) ? 1 : 0;
                    }
                    room.by_node[h].push_back(left);
                    if (!state.cell.doomed) room.gpus += left;
                    room.bound_gpus += left;
                }
            }
        }
        return room;
    }

    // True if a virtual cell of the cluster that no job uses, and that is large enough for the gang, could be bound to
    // a healthy cell that no job with a claim uses and that no other tenant needs to get all it owns.
    bool could_bind_healthy_cell(const PlaceRequest& asked) const {
        for (std::uint32_t h = 0; h < config_.hierarchies.size(); ++h) {
            const HierarchyConfig& hierarchy = config_.hierarchies[h];
            if (cluster_.nodes[first_node_[h]].gpu_type != asked.gpu_type) continue;
            std::vector<bool> taken(hierarchy.gpus());
            std::vector<std::int64_t> idle(hierarchy.levels_count());
            std::vector<bool> own(hierarchy.levels_count());
            for (const VirtualCellState& state : states_) {
                if (state.hierarchy != h) continue;
                const std::uint32_t level = state.cell.level;
                if (is_used(state)) {
                    const std::uint32_t size = hierarchy.gpus_in(level);
                    for (std::uint32_t gpu = 0; gpu < size; ++gpu) taken[state.cell.index * size + gpu] = true;
                } else {
                    ++idle[level];
                    own[level] = own[level] || state.cluster == asked.tenant;
                }
            }
            for (std::uint32_t level = 0; level < hierarchy.levels_count(); ++level) {
                if (!own[level] || !fits_cell(hierarchy, level, asked)) continue;
                --idle[level];
                for (std::uint32_t index = 0; index < hierarchy.gpus() / hierarchy.gpus_in(level); ++index) {
                    if (is_healthy_and_free(h, level, index, taken) && leaves_enough(h, level, index, taken, idle)) {
                        return true;
                    }
                }
                ++idle[level];
            }
        }
        return false;
    }

    // True if the gang fits into an idle cell of the level.
    static bool fits_cell(const HierarchyConfig& hierarchy, std::uint32_t level, const PlaceRequest& asked) {
        std::uint32_t limit = level;
        if (asked.shape != nullptr) {
            if (!asked.shape->cell.empty()) return false;
            if (!asked.shape->hierarchy.empty() && asked.shape->hierarchy != hierarchy.name) return false;
            if (!asked.shape->together.empty()) {
                const auto together = hierarchy.level_named(asked.shape->together);
                if (!together) return false;
                limit = std::min(limit, *together);
            }
        }
        const std::uint32_t per_node = std::min(hierarchy.gpus_in(limit), hierarchy.gpus_in(hierarchy.node_level));
        const std::vector<std::uint32_t> nodes(hierarchy.gpus_in(limit) / per_node, per_node);
        if (!asked.pods().empty()) return !pack_pods(nodes, asked.pods()).empty();
        return hierarchy.gpus_in(limit) >= asked.gpus;
    }

    // True if the virtual cell is pinned or a job with a claim holds GPUs of it.
    bool is_used(const VirtualCellState& state) const {
        if (state.cell.index == kNone || state.cell.pinned) return state.cell.pinned;
        const HierarchyConfig& hierarchy = config_.hierarchies[state.hierarchy];
        const std::uint32_t size = hierarchy.gpus_in(state.cell.level);
        const std::uint32_t per_node = hierarchy.gpus_in(hierarchy.node_level);
        for (std::uint32_t gpu = state.cell.index * size; gpu < (state.cell.index + 1) * size; ++gpu) {
            if ((claimed_gpus(first_node_[state.hierarchy] + gpu / per_node) >> (gpu % per_node) & 1) != 0) return true;
        }
        return false;
    }

    bool is_healthy_and_free(std::uint32_t h, std::uint32_t level, std::uint32_t index,
                             const std::vector<bool>& taken) const {
        const HierarchyConfig& hierarchy = config_.hierarchies[h];
        const std::uint32_t size = hierarchy.gpus_in(level);
        for (std::uint32_t gpu = index * size; gpu < (index + 1) * size; ++gpu) {
            if (taken[gpu] || is_bad(h, gpu / hierarchy.gpus_in(hierarchy.node_level))) return false;
        }
        return true;
    }

    // True if, with this cell taken, each level has as many free cells as the idle virtual cells need.
    bool leaves_enough(std::uint32_t h, std::uint32_t level, std::uint32_t index, std::vector<bool> taken,
                       const std::vector<std::int64_t>& idle) const {
        const HierarchyConfig& hierarchy = config_.hierarchies[h];
        const std::uint32_t size = hierarchy.gpus_in(level);
        for (std::uint32_t gpu = index * size; gpu < (index + 1) * size; ++gpu) taken[gpu] = true;
        for (std::uint32_t at = 0; at < hierarchy.levels_count(); ++at) {
            const std::uint32_t cell = hierarchy.gpus_in(at);
            std::int64_t spare = 0;
            for (std::uint32_t first = 0; first < hierarchy.gpus(); first += cell) {
                const auto from = taken.begin() + first;
                spare += std::find(from, from + cell, true) == from + cell ? 1 : 0;
            }
            for (std::uint32_t high = at; high < idle.size(); ++high) {
                spare -= idle[high] * (hierarchy.gpus_in(high) / cell);
            }
            if (spare < 0) return false;
        }
        return true;
    }

    CellConfig config_;
    GpuCluster cluster_;
    std::unique_ptr<Cells> cells_;
    std::uint32_t tenants_ = 0;  // the last one has no virtual cluster
    std::vector<std::uint32_t> first_node_;
    std::vector<bool> bad_;
    std::uint64_t doomed_ = 0;  // virtual cells, summed over all checks
    std::map<JobId, PlacedJob> jobs_;
    std::vector<VirtualCellState> states_;
    std::vector<std::vector<int>> gpu_owner_;
};

}  // namespace larder::scheduler::tests
