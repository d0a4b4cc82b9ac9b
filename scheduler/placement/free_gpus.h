#pragma once

// Which GPUs are free, by node, and which of them a gang should rather have. Two ways to choose are weighed by the rate
// that the gang would make (gang_rate.h): as few nodes as can be, or as many of its GPUs as can be on the nodes that
// hold its data. A gang that fits into one node goes where the fewest GPUs are left over, a larger one takes the
// fullest free nodes; among equals, nodes near its data go first, then those with lower numbers. Choosing takes time
// with the gang's nodes and those near its data, not with the cluster's. Nothing is taken until set() says so.

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
    std::uint32_t gpu_type(std::uint32_t node) const { return nodes_[node].gpu_type; }
    bool usable(std::uint32_t node) const { return nodes_[node].usable; }
    // On usable nodes.
    std::uint32_t count(std::uint32_t gpu_type) const { return count_[gpu_type]; }

    void set(std::uint32_t node, std::uint64_t free);
    void set_usable(std::uint32_t node, bool usable);

    // By node; nothing: too few are free.
    std::optional<Placement> choose(const PlaceRequest& request) const;

private:
    struct Node {
        std::uint32_t gpu_type = 0;
        std::uint64_t free = 0;
        bool usable = true;
    };
    // The nodes of one type with just so many free GPUs, by that number.
    using ByFree = std::vector<std::set<std::uint32_t>>;
    class Choice;

    std::vector<Node> nodes_;
    std::vector<ByFree> by_free_;              // by type
    std::vector<std::uint32_t> count_;         // by type
    std::vector<std::uint32_t> gpus_at_most_;  // of one node, by type
};

// The lowest `count` of the bits.
std::uint64_t lowest_bits(std::uint64_t bits, std::uint32_t count);

}  // namespace larder::scheduler
