#pragma once

// Tracks which GPUs are free, by node, and chooses GPUs for a gang. It compares two placements by the rate that the
// gang would make (gang_rate.h): one on as few nodes as possible, and one with as many GPUs as possible on nodes that
// hold the gang's data. A gang that fits into one node goes where the fewest GPUs are left over; a larger gang takes
// the nodes with the most free GPUs. Ties go to nodes near its data, then to lower numbers. The time to choose grows
// with the gang's nodes and those near its data, not with the cluster. choose() takes nothing; the caller takes GPUs
// with set().

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "scheduler/placement/placer.h"

namespace larder::scheduler {

class FreeGpus {
public:
    explicit FreeGpus(const GpuCluster& cluster);

    std::uint64_t at(std::uint32_t node) const { return nodes_[node].free; }
    std::uint64_t usable_at(std::uint32_t node) const { return nodes_[node].usable ? nodes_[node].free : 0; }
    std::uint32_t gpu_type(std::uint32_t node) const { return nodes_[node].gpu_type; }
    bool usable(std::uint32_t node) const { return nodes_[node].usable; }
    // Returns the free GPUs on usable nodes.
    std::uint32_t count(std::uint32_t gpu_type) const { return count_[gpu_type]; }

    void set(std::uint32_t node, std::uint64_t free);
    void set_usable(std::uint32_t node, bool usable);
    // Changes all of a node, or adds the node after the last.
    void set_node(std::uint32_t node, const GpuNode& now, std::uint64_t free);

    // Returns a placement sorted by node; nullopt: too few GPUs are free.
    std::optional<Placement> choose(const PlaceRequest& request) const;

private:
    std::optional<Placement> choose_for_pods(const PlaceRequest& request) const;
    void note_largest(std::uint32_t gpu_type);

    struct Node {
        std::uint32_t gpu_type = 0;
        std::uint64_t free = 0;
        bool usable = true;
        std::uint32_t gpus = 0;
    };
    // The nodes of one type, by their exact number of free GPUs.
    using ByFree = std::vector<std::set<std::uint32_t>>;
    class Choice;

    std::vector<Node> nodes_;
    std::vector<ByFree> by_free_;                      // by type
    std::vector<std::uint32_t> count_;                 // by type
    std::vector<std::uint32_t> gpus_on_largest_node_;  // by type
};

}  // namespace larder::scheduler
