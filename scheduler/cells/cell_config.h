#pragma once

// What cells there are and whose they are (HiveD, OSDI '20). A hierarchy is a number of machines of one kind: GPUs make
// up cells, cells of one level make up those of the next, and one of the levels is the node; its cells at each level
// are all alike, so uneven machines are hierarchies of their own. A virtual cluster is a tenant's share: it owns so
// many cells of a level, whichever they are, or pinned ones, which are just these. Level 0 is a single GPU, level k is
// levels[k - 1]. Read from TOML by cell_config_toml.h; docs/scheduling.md describes the file.

#include <cstdint>
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
    std::uint32_t of = 0;  // cells of the level below
};

struct HierarchyConfig {
    std::string name;
    std::string gpu_type;
    std::vector<CellLevel> levels;   // the smallest first
    std::uint32_t node_level = 1;    // at least 1
    std::vector<std::string> nodes;  // each cell of the highest level takes the next ones

    std::uint32_t levels_count() const { return static_cast<std::uint32_t>(levels.size()) + 1; }
    std::uint32_t gpus_in(std::uint32_t level) const;
    std::uint32_t gpus() const { return static_cast<std::uint32_t>(nodes.size()) * gpus_in(node_level); }
    std::string_view level_name(std::uint32_t level) const;
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
};

struct VirtualClusterConfig {
    std::string name;  // the tenant's
    std::vector<CellClaim> cells;
    std::vector<PinnedCell> pinned;
};

struct CellConfig {
    std::vector<HierarchyConfig> hierarchies;
    std::vector<VirtualClusterConfig> virtual_clusters;
};

// Whether the levels are sound, the pinned cells lie apart, and no level of a hierarchy is over-committed: the virtual
// clusters own no more of it than is left. `source` is what errors call the config: the file's path.
Result<void> check_cells(const CellConfig& config, std::string_view source);

// The GPUs that a checked config describes: its types by their first mention, its nodes in their order.
GpuCluster cluster_of(const CellConfig& config);
// How many GPUs of the type a virtual cluster owns.
std::uint32_t gpus_owned(const CellConfig& config, std::uint32_t virtual_cluster, std::string_view gpu_type);
// A cluster of just what one virtual cluster owns, and it as the owner of it all: what its guarantees are held against.
CellConfig private_config(const CellConfig& config, std::uint32_t virtual_cluster);

}  // namespace larder::scheduler
