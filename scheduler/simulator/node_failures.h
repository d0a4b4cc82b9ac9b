#pragma once

// Draws the times at which each node is lost and comes back. Nodes fail independently, after exponentially distributed
// times.

#include <algorithm>
#include <vector>

#include "scheduler/simulator/random.h"
#include "scheduler/simulator/simulation.h"

namespace larder::scheduler {

class NodeFailures {
public:
    NodeFailures(const SimulationOptions& options, std::size_t nodes)
        : random_(options.seed ^ 0x6e6f646573U),
          lifetime_s_(options.node_lifetime_s),
          repair_s_(options.node_repair_s) {
        if (lifetime_s_ == kNever) return;
        for (std::size_t n = 0; n < nodes; ++n) nodes_.push_back({.next_s = random_.exponential_s(lifetime_s_)});
    }

    double next_s() const {
        double next_s = kNever;
        for (const Node& node : nodes_) next_s = std::min(next_s, node.next_s);
        return next_s;
    }
    bool any_lost() const {
        return std::ranges::any_of(nodes_, [](const Node& node) { return node.lost; });
    }
    std::uint32_t lost_gpus(const GpuCluster& cluster, std::uint32_t type) const {
        std::uint32_t gpus = 0;
        for (std::size_t n = 0; n < nodes_.size(); ++n) {
            if (nodes_[n].lost && cluster.nodes[n].gpu_type == type) gpus += cluster.nodes[n].gpus;
        }
        return gpus;
    }
    // Calls changed(node, usable) for each node that fails or recovers by `now_s`.
    template <typename Changed>
    void handle_events(double now_s, Changed changed) {
        for (std::uint32_t n = 0; n < nodes_.size(); ++n) {
            Node& node = nodes_[n];
            if (node.next_s > now_s) continue;
            node.lost = !node.lost;
            node.next_s = now_s + std::max(1e-3, node.lost ? repair_s_ : random_.exponential_s(lifetime_s_));
            changed(n, !node.lost);
        }
    }

private:
    struct Node {
        double next_s = 0;
        bool lost = false;
    };

    Random random_;
    double lifetime_s_;
    double repair_s_;
    std::vector<Node> nodes_;
};

}  // namespace larder::scheduler
