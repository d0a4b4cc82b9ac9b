#pragma once

// Random cell configurations, and dice for random operations on them.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/cells/cell_config.h"

namespace larder::scheduler::tests {

class Dice {  // SplitMix64 (Steele et al. '14)
public:
    explicit Dice(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    // Returns a number from `least` to `most`, both included.
    std::uint32_t between(std::uint32_t least, std::uint32_t most) {
        return least + static_cast<std::uint32_t>(next() % (most - least + 1));
    }
    bool chance(std::uint32_t percent) { return between(1, 100) <= percent; }

private:
    std::uint64_t state_;
};

inline HierarchyConfig random_hierarchy(Dice& dice, std::uint32_t number) {
    HierarchyConfig hierarchy{
        .name = "h" + std::to_string(number), .gpu_type = dice.chance(70) ? "a" : "b", .levels = {}, .nodes = {}};
    const std::uint32_t levels = dice.between(1, 4);
    hierarchy.node_level = dice.between(1, std::min(levels, 3U));
    for (std::uint32_t level = 1; level <= levels; ++level) {
        hierarchy.levels.push_back({.name = "l" + std::to_string(level), .of = dice.between(1, level == 1 ? 4 : 3)});
    }
    const std::uint32_t nodes = hierarchy.gpus_in(levels) / hierarchy.gpus_in(hierarchy.node_level);
    const std::uint32_t tops = dice.between(1, std::max(1U, 48 / hierarchy.gpus_in(levels)));
    for (std::uint32_t n = 0; n < nodes * std::min(tops, 8U); ++n) {
        hierarchy.nodes.push_back(hierarchy.name + "-" + std::to_string(n));
    }
    return hierarchy;
}

// Returns a random configuration. Tenants mostly own almost all GPUs, and sometimes few.
inline CellConfig random_config(Dice& dice) {
    CellConfig config;
    const std::uint32_t hierarchies = dice.between(1, 3);
    for (std::uint32_t h = 0; h < hierarchies; ++h) config.hierarchies.push_back(random_hierarchy(dice, h));
    const std::uint32_t clusters = dice.between(1, 4);
    for (std::uint32_t c = 0; c < clusters; ++c) {
        config.virtual_clusters.push_back({.name = "t" + std::to_string(c), .cells = {}, .pinned = {}});
    }
    const std::uint32_t tries = dice.between(3, 40);
    for (std::uint32_t i = 0; i < tries; ++i) {
        CellConfig more = config;
        VirtualClusterConfig& owner = more.virtual_clusters[dice.between(0, clusters - 1)];
        const std::uint32_t h = dice.between(0, hierarchies - 1);
        const HierarchyConfig& hierarchy = more.hierarchies[h];
        const std::uint32_t level = dice.between(0, hierarchy.levels_count() - 1);
        if (dice.chance(15)) {
            const std::uint32_t cells = hierarchy.gpus() / hierarchy.gpus_in(level);
            owner.pinned.push_back({.hierarchy = h,
                                    .level = level,
                                    .index = dice.between(0, cells - 1),
                                    .name = "p" + std::to_string(owner.pinned.size())});
        } else {
            owner.cells.push_back({.hierarchy = h, .level = level, .count = dice.between(1, 2)});
        }
        if (check_cells(more, "random")) config = std::move(more);
    }
    return config;
}

template <typename Entries>
void shuffle(Entries& entries, Dice& dice) {
    for (std::size_t i = entries.size(); i > 1; --i) {
        std::swap(entries[i - 1], entries[dice.between(0, static_cast<std::uint32_t>(i) - 1)]);
    }
}

// Returns a file of cells with the same content, in a random order.
inline std::string shuffled_file(const CellConfig& config, Dice& dice) {
    std::vector<std::string> tables;
    for (const HierarchyConfig& hierarchy : config.hierarchies) {
        std::string table = "[[hierarchy]]\nname = \"" + hierarchy.name + "\"\ngpu_type = \"" + hierarchy.gpu_type +
                            "\"\nnode = \"" + std::string(hierarchy.level_name(hierarchy.node_level)) +
                            "\"\nlevels = [";
        for (const CellLevel& level : hierarchy.levels) {
            table += "{ name = \"" + level.name + "\", of = " + std::to_string(level.of) + " }, ";
        }
        table += "]\nnodes = [";
        for (const std::string& node : hierarchy.nodes) table += "\"" + node + "\", ";
        tables.push_back(table + "]\n");
    }
    for (const VirtualClusterConfig& owner : config.virtual_clusters) {
        std::vector<std::string> cells;
        std::vector<std::string> pinned;
        const auto entry = [&](std::uint32_t h, std::uint32_t level) {
            return "{ hierarchy = \"" + config.hierarchies[h].name + "\", level = \"" +
                   std::string(config.hierarchies[h].level_name(level)) + "\", ";
        };
        for (const CellClaim& claim : owner.cells) {
            cells.push_back(entry(claim.hierarchy, claim.level) + "count = " + std::to_string(claim.count) + " }, ");
        }
        for (const PinnedCell& pin : owner.pinned) {
            const HierarchyConfig& hierarchy = config.hierarchies[pin.hierarchy];
            const std::uint32_t first = pin.index * hierarchy.gpus_in(pin.level);
            const std::uint32_t per_node = hierarchy.gpus_in(hierarchy.node_level);
            std::string text = entry(pin.hierarchy, pin.level) + "node = \"" + hierarchy.nodes[first / per_node] + "\"";
            text += ", name = \"" + pin.name + "\"";
            if (pin.level < hierarchy.node_level) text += ", gpu = " + std::to_string(first % per_node);
            pinned.push_back(text + " }, ");
        }
        shuffle(cells, dice);
        shuffle(pinned, dice);
        std::string table = "[[virtual_cluster]]\nname = \"" + owner.name + "\"\ncells = [";
        for (const std::string& cell : cells) table += cell;
        table += "]\npinned = [";
        for (const std::string& pin : pinned) table += pin;
        tables.push_back(table + "]\n");
    }
    shuffle(tables, dice);
    std::string file;
    for (const std::string& table : tables) file += table;
    return file;
}

}  // namespace larder::scheduler::tests
