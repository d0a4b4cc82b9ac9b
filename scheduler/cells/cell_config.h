#pragma once

// Describes the cells and their owners (HiveD, OSDI '20). A hierarchy is a number of machines of one kind: GPUs form
// cells, cells of one level form the cells of the next level, and one of the levels is the node. All cells of a level
// have the same shape, so uneven machines need hierarchies of their own, and a machine with two GPU types is in two
// hierarchies. A virtual cluster is a tenant's share: it owns a number of cells of a level, no matter which, or pinned
// cells, which are specific cells. Level 0 is a single GPU, level k is levels[k - 1]. cell_config_toml.h reads the
// configuration from TOML; docs/policies.md describes the file.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "scheduler/gpu_cluster.h"

namespace larder::scheduler {

inline constexpr std::uint32_t kCellLevelsMax = 8;        // above the GPU
inline constexpr std::uint32_t kCellGpusMax = 1'000'000;  // of one hierarchy
inline constexpr std::string_view kGpuLevelName = "gpu";

struct CellLevel {
    std::string name;
    std::uint32_t of = 0;  // number of cells of the level below
};

struct HierarchyConfig {
    std::string name;
    std::string gpu_type;
    std::vector<CellLevel> levels;   // the smallest first
    std::uint32_t node_level = 1;    // at least 1
    std::vector<std::string> nodes;  // assigned in this order to the cells of the highest level
    std::uint32_t first_gpu = 0;     // of each node's GPUs, as the machine numbers them

    std::uint32_t levels_count() const { return static_cast<std::uint32_t>(levels.size()) + 1; }
    std::uint32_t gpus_in(std::uint32_t level) const;
    std::uint32_t gpus() const { return static_cast<std::uint32_t>(nodes.size()) * gpus_in(node_level); }
    std::string_view level_name(std::uint32_t level) const;
    std::optional<std::uint32_t> level_named(std::string_view name) const;
};

struct CellClaim {
    std::uint32_t hierarchy = 0;  // index in CellConfig::hierarchies
    std::uint32_t level = 0;
    std::uint32_t count = 0;
};

struct PinnedCell {
    std::uint32_t hierarchy = 0;
    std::uint32_t level = 0;
    std::uint32_t index = 0;  // among the level's cells
    std::string name = {};    // by which jobs ask for the cell; empty: none
};

struct VirtualClusterConfig {
    std::string name;  // name of the tenant
    std::vector<CellClaim> cells;
    std::vector<PinnedCell> pinned;
};

struct CellConfig {
    std::vector<HierarchyConfig> hierarchies;
    std::vector<VirtualClusterConfig> virtual_clusters;
};

// Checks that the levels are valid, the pinned cells do not overlap, and no level of a hierarchy is over-committed: the
// virtual clusters own no more cells than the pinned cells leave. `source` names the config in errors: the file's path.
Result<void> check_cells(const CellConfig& config, std::string_view source);

// Sorts hierarchies and virtual clusters by name, and cells by hierarchy and level, so that placement does not depend
// on the order in a file. The order of a hierarchy's nodes stays: the order says which nodes are close together.
void sort_cells(CellConfig& config);

// Returns the GPUs that a checked config describes: types in the order of first mention, nodes in their order.
GpuCluster cluster_of(const CellConfig& config);
// Returns how many GPUs of the type a virtual cluster owns.
std::uint32_t gpus_owned(const CellConfig& config, std::uint32_t virtual_cluster, std::string_view gpu_type);
// Returns the config of a cluster with only the cells of one virtual cluster, which owns all of it. The guarantees of a
// virtual cluster are compared with this cluster.
CellConfig private_config(const CellConfig& config, std::uint32_t virtual_cluster);

}  // namespace larder::scheduler
