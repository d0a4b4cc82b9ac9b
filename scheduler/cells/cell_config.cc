#include "scheduler/cells/cell_config.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "base/server/config_text.h"

namespace larder::scheduler {

std::uint32_t HierarchyConfig::gpus_in(std::uint32_t level) const {
    std::uint32_t gpus = 1;
    for (std::uint32_t k = 0; k < level; ++k) gpus *= levels[k].of;
    return gpus;
}

std::string_view HierarchyConfig::level_name(std::uint32_t level) const {
    return level == 0 ? kGpuLevelName : std::string_view(levels[level - 1].name);
}

std::optional<std::uint32_t> HierarchyConfig::level_named(std::string_view wanted) const {
    for (std::uint32_t level = 0; level < levels_count(); ++level) {
        if (level_name(level) == wanted) return level;
    }
    return std::nullopt;
}

namespace {

std::string quoted(std::string_view text) {
    return "\"" + std::string(text) + "\"";
}

std::string level_of(const HierarchyConfig& hierarchy, std::uint32_t level) {
    return "level " + quoted(hierarchy.level_name(level)) + " of hierarchy " + quoted(hierarchy.name);
}

Result<void> check_shape(const HierarchyConfig& hierarchy, std::string_view source) {
    const auto wrong = [&](const std::string& why) {
        return config_error(source, "hierarchy " + quoted(hierarchy.name) + ": " + why);
    };
    if (hierarchy.name.empty() || hierarchy.gpu_type.empty()) return wrong("name and gpu_type must not be empty");
    if (hierarchy.levels.empty() || hierarchy.levels.size() > kCellLevelsMax) {
        return wrong("levels has " + std::to_string(hierarchy.levels.size()) + " entries: expected 1 to 8");
    }
    std::set<std::string_view> names{kGpuLevelName};
    std::uint64_t gpus = 1;
    for (const CellLevel& level : hierarchy.levels) {
        if (!names.insert(level.name).second || level.name.empty()) {
            return wrong("level name = " + quoted(level.name) + ": expected a unique name, not empty and not \"gpu\"");
        }
        gpus *= level.of;
        if (level.of == 0 || gpus > kCellGpusMax) {
            return wrong("level " + quoted(level.name) + " of = " + std::to_string(level.of) +
                         ": expected at least 1 cell of the level below, and at most 1000000 GPUs in a cell");
        }
    }
    if (hierarchy.node_level == 0 || hierarchy.node_level > hierarchy.levels.size()) {
        return wrong("node is not the name of a level: expected the name of one of the hierarchy's levels");
    }
    const std::uint32_t node_gpus = hierarchy.gpus_in(hierarchy.node_level);
    if (node_gpus > kGpusPerNodeMax) {
        return wrong("a node has " + std::to_string(node_gpus) + " GPUs: expected at most 64");
    }
    if (hierarchy.first_gpu > kGpusPerNodeMax - node_gpus) {
        return wrong("first_gpu = " + std::to_string(hierarchy.first_gpu) + ": expected at most " +
                     std::to_string(kGpusPerNodeMax - node_gpus) + ", so that no GPU's number is above 63");
    }
    const auto top = static_cast<std::uint32_t>(hierarchy.levels.size());
    const std::uint32_t nodes_in_top = hierarchy.gpus_in(top) / node_gpus;
    if (hierarchy.nodes.empty() || hierarchy.nodes.size() % nodes_in_top != 0) {
        return wrong("nodes has " + std::to_string(hierarchy.nodes.size()) + " names: expected a multiple of " +
                     std::to_string(nodes_in_top) + ", the nodes of one " + quoted(hierarchy.level_name(top)));
    }
    if (hierarchy.nodes.size() * static_cast<std::uint64_t>(node_gpus) > kCellGpusMax) {
        return wrong("has " + std::to_string(hierarchy.nodes.size() * node_gpus) + " GPUs: expected at most 1000000");
    }
    return {};
}

// A machine with GPUs of several types is a node of several hierarchies, each with GPUs of its own.
Result<void> check_machines(const CellConfig& config, std::string_view source) {
    std::unordered_map<std::string_view, std::vector<const HierarchyConfig*>> parts;
    for (const HierarchyConfig& hierarchy : config.hierarchies) {
        const std::uint32_t end = hierarchy.first_gpu + hierarchy.gpus_in(hierarchy.node_level);
        for (const std::string& node : hierarchy.nodes) {
            for (const HierarchyConfig* const other : parts[node]) {
                const std::string both = "hierarchies " + quoted(other->name) + " and " + quoted(hierarchy.name) +
                                         " both have the node " + quoted(node);
                const std::uint32_t other_end = other->first_gpu + other->gpus_in(other->node_level);
                if (other->gpu_type == hierarchy.gpu_type) {
                    return config_error(source, both + " with GPUs of type " + quoted(hierarchy.gpu_type) +
                                                    ": GPUs of one type on one machine are one node");
                }
                if (hierarchy.first_gpu < other_end && other->first_gpu < end) {
                    return config_error(source, both + " with GPU " +
                                                    std::to_string(std::max(hierarchy.first_gpu, other->first_gpu)) +
                                                    ": set first_gpu to the number of the first GPU of its type");
                }
            }
            parts[node].push_back(&hierarchy);
        }
    }
    return {};
}

Result<void> check_names(const CellConfig& config, std::string_view source) {
    std::set<std::string_view> hierarchies;
    for (const HierarchyConfig& hierarchy : config.hierarchies) {
        if (!hierarchies.insert(hierarchy.name).second) {
            return config_error(source, "hierarchy " + quoted(hierarchy.name) + " appears twice");
        }
        std::unordered_set<std::string_view> nodes;
        for (const std::string& node : hierarchy.nodes) {
            if (node.empty() || !nodes.insert(node).second) {
                return config_error(source, "hierarchy " + quoted(hierarchy.name) + ": node " + quoted(node) +
                                                (node.empty() ? " has no name" : " appears twice"));
            }
        }
    }
    if (auto good = check_machines(config, source); !good) return good;
    std::set<std::string_view> clusters;
    for (const VirtualClusterConfig& cluster : config.virtual_clusters) {
        if (cluster.name.empty() || !clusters.insert(cluster.name).second) {
            return config_error(source, "virtual cluster " + quoted(cluster.name) +
                                            (cluster.name.empty() ? " has no name" : " appears twice"));
        }
    }
    return {};
}

bool overlap(const HierarchyConfig& hierarchy, const PinnedCell& a, const PinnedCell& b) {
    const PinnedCell& high = a.level >= b.level ? a : b;
    const PinnedCell& low = a.level >= b.level ? b : a;
    return low.index / (hierarchy.gpus_in(high.level) / hierarchy.gpus_in(low.level)) == high.index;
}

Result<void> check_owned(const CellConfig& config, std::string_view source) {
    std::vector<PinnedCell> pinned;
    for (const VirtualClusterConfig& cluster : config.virtual_clusters) {
        const auto wrong = [&](const std::string& why) {
            return config_error(source, "virtual cluster " + quoted(cluster.name) + ": " + why);
        };
        for (const CellClaim& claim : cluster.cells) {
            if (claim.hierarchy >= config.hierarchies.size() ||
                claim.level >= config.hierarchies[claim.hierarchy].levels_count() || claim.count == 0) {
                return wrong("owns cells of an unknown hierarchy or level, or 0 cells");
            }
        }
        std::set<std::string_view> names;
        for (const PinnedCell& pin : cluster.pinned) {
            if (!pin.name.empty() && !names.insert(pin.name).second) {
                return wrong("has two pinned cells of the name " + quoted(pin.name));
            }
            if (pin.hierarchy >= config.hierarchies.size() ||
                pin.level >= config.hierarchies[pin.hierarchy].levels_count()) {
                return wrong("pins a cell of an unknown level");
            }
            const HierarchyConfig& hierarchy = config.hierarchies[pin.hierarchy];
            if (pin.index >= hierarchy.gpus() / hierarchy.gpus_in(pin.level)) {
                return wrong("pins a cell that does not exist, at " + level_of(hierarchy, pin.level));
            }
            for (const PinnedCell& other : pinned) {
                if (other.hierarchy == pin.hierarchy && overlap(hierarchy, pin, other)) {
                    return wrong("pins a cell at " + level_of(hierarchy, pin.level) +
                                 " that lies within another pinned cell, or contains one");
                }
            }
            pinned.push_back(pin);
        }
    }
    return {};
}

// Returns how many cells of the level are not pinned, lie in no pinned cell and contain none.
std::uint32_t cells_left_by_pins(const CellConfig& config, std::uint32_t h, std::uint32_t level) {
    const HierarchyConfig& hierarchy = config.hierarchies[h];
    std::set<std::uint32_t> holders;
    std::uint32_t left = hierarchy.gpus() / hierarchy.gpus_in(level);
    for (const VirtualClusterConfig& cluster : config.virtual_clusters) {
        for (const PinnedCell& pin : cluster.pinned) {
            if (pin.hierarchy != h) continue;
            if (pin.level >= level) {
                left -= hierarchy.gpus_in(pin.level) / hierarchy.gpus_in(level);
            } else {
                holders.insert(pin.index / (hierarchy.gpus_in(level) / hierarchy.gpus_in(pin.level)));
            }
        }
    }
    return left - static_cast<std::uint32_t>(holders.size());
}

Result<void> check_committed(const CellConfig& config, std::string_view source) {
    for (std::uint32_t h = 0; h < config.hierarchies.size(); ++h) {
        const HierarchyConfig& hierarchy = config.hierarchies[h];
        std::uint64_t owned = 0;  // cells owned at this level and above, counted in cells of this level
        for (std::uint32_t level = hierarchy.levels_count(); level-- > 0;) {
            if (level + 1 < hierarchy.levels_count()) owned *= hierarchy.levels[level].of;
            std::string owners = owned > 0 ? std::to_string(owned) + " within cells of higher levels" : "";
            for (const VirtualClusterConfig& cluster : config.virtual_clusters) {
                for (const CellClaim& claim : cluster.cells) {
                    if (claim.hierarchy != h || claim.level != level) continue;
                    owned += claim.count;
                    owners += (owners.empty() ? "" : ", ") + quoted(cluster.name) + " " + std::to_string(claim.count);
                }
            }
            const std::uint32_t available = cells_left_by_pins(config, h, level);
            if (owned <= available) continue;
            return config_error(source, level_of(hierarchy, level) + " is over-committed: virtual clusters own " +
                                            std::to_string(owned) + " of its cells (" + owners + "), which is " +
                                            std::to_string(owned - available) + " more than the " +
                                            std::to_string(available) + " available");
        }
    }
    return {};
}

}  // namespace

Result<void> check_cells(const CellConfig& config, std::string_view source) {
    if (config.hierarchies.empty())
        return config_error(source, "hierarchy is missing: expected at least one [[hierarchy]]");
    for (const HierarchyConfig& hierarchy : config.hierarchies) {
        if (auto good = check_shape(hierarchy, source); !good) return good;
    }
    if (auto good = check_names(config, source); !good) return good;
    if (auto good = check_owned(config, source); !good) return good;
    return check_committed(config, source);
}

void sort_cells(CellConfig& config) {
    std::vector<std::uint32_t> order(config.hierarchies.size());
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::sort(order, {}, [&](std::uint32_t h) -> const std::string& { return config.hierarchies[h].name; });
    std::vector<HierarchyConfig> hierarchies;
    std::vector<std::uint32_t> index_now(order.size());
    for (const std::uint32_t before : order) {
        index_now[before] = static_cast<std::uint32_t>(hierarchies.size());
        hierarchies.push_back(std::move(config.hierarchies[before]));
    }
    config.hierarchies = std::move(hierarchies);
    for (VirtualClusterConfig& owner : config.virtual_clusters) {
        for (CellClaim& claim : owner.cells) claim.hierarchy = index_now[claim.hierarchy];
        for (PinnedCell& pin : owner.pinned) pin.hierarchy = index_now[pin.hierarchy];
        std::ranges::sort(owner.cells, {},
                          [](const CellClaim& claim) { return std::tuple(claim.hierarchy, claim.level, claim.count); });
        std::ranges::sort(owner.pinned, {},
                          [](const PinnedCell& pin) { return std::tuple(pin.hierarchy, pin.level, pin.index); });
    }
    std::ranges::sort(config.virtual_clusters, {}, &VirtualClusterConfig::name);
}

GpuCluster cluster_of(const CellConfig& config) {
    GpuCluster cluster;
    for (const HierarchyConfig& hierarchy : config.hierarchies) {
        auto type = std::ranges::find(cluster.gpu_types, hierarchy.gpu_type);
        if (type == cluster.gpu_types.end()) type = cluster.gpu_types.insert(type, hierarchy.gpu_type);
        const auto index = static_cast<std::uint32_t>(type - cluster.gpu_types.begin());
        for (const std::string& node : hierarchy.nodes) {
            cluster.nodes.push_back({.name = node,
                                     .gpu_type = index,
                                     .gpus = hierarchy.gpus_in(hierarchy.node_level),
                                     .usable = true,
                                     .first_gpu = hierarchy.first_gpu});
        }
    }
    return cluster;
}

std::uint32_t gpus_owned(const CellConfig& config, std::uint32_t virtual_cluster, std::string_view gpu_type) {
    std::uint32_t gpus = 0;
    const auto add = [&](std::uint32_t h, std::uint32_t level, std::uint32_t count) {
        if (config.hierarchies[h].gpu_type == gpu_type) gpus += count * config.hierarchies[h].gpus_in(level);
    };
    const VirtualClusterConfig& cluster = config.virtual_clusters[virtual_cluster];
    for (const CellClaim& claim : cluster.cells) add(claim.hierarchy, claim.level, claim.count);
    for (const PinnedCell& pin : cluster.pinned) add(pin.hierarchy, pin.level, 1);
    return gpus;
}

CellConfig private_config(const CellConfig& config, std::uint32_t virtual_cluster) {
    const VirtualClusterConfig& owner = config.virtual_clusters[virtual_cluster];
    CellConfig alone;
    alone.virtual_clusters.push_back({.name = owner.name, .cells = {}, .pinned = {}});
    // The cells of one level become a hierarchy that ends at that level. Cells below the node level become smaller
    // nodes.
    for (std::uint32_t h = 0; h < config.hierarchies.size(); ++h) {
        const HierarchyConfig& hierarchy = config.hierarchies[h];
        for (std::uint32_t level = 0; level < hierarchy.levels_count(); ++level) {
            std::uint32_t count = 0;
            for (const CellClaim& claim : owner.cells) {
                if (claim.hierarchy == h && claim.level == level) count += claim.count;
            }
            for (const PinnedCell& pin : owner.pinned) {
                if (pin.hierarchy == h && pin.level == level) ++count;
            }
            if (count == 0) continue;
            HierarchyConfig part{.name = hierarchy.name + "/" + std::string(hierarchy.level_name(level)),
                                 .gpu_type = hierarchy.gpu_type,
                                 .levels = {hierarchy.levels.begin(), hierarchy.levels.begin() + level},
                                 .node_level = std::max(1U, std::min(level, hierarchy.node_level)),
                                 .nodes = {}};
            if (level == 0) part.levels.push_back({.name = "node", .of = 1});
            const std::uint32_t nodes = count * hierarchy.gpus_in(level) / part.gpus_in(part.node_level);
            for (std::uint32_t n = 0; n < nodes; ++n) part.nodes.push_back(part.name + "/" + std::to_string(n));
            alone.virtual_clusters[0].cells.push_back(
                {.hierarchy = static_cast<std::uint32_t>(alone.hierarchies.size()),
                 .level = std::max(1U, level),
                 .count = count});
            alone.hierarchies.push_back(std::move(part));
        }
    }
    return alone;
}

}  // namespace larder::scheduler
