#pragma once

// The times at which each node is lost and comes back. Nodes fail independently, after exponentially distributed times.
// A node that is lost at a given time (NodeLoss) stays lost.

#include <algorithm>
#include <utility>
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
        if (lifetime_s_ == kNever && options.node_losses.empty()) return;
        for (std::size_t n = 0; n < nodes; ++n) nodes_.push_back({.next_s = next_failure_s(0)});
        for (const NodeLoss& loss : options.node_losses) {
            nodes_[loss.node].lost_for_good_s = std::min(nodes_[loss.node].lost_for_good_s, loss.at_s);
        }
    }

    double next_s() const {
        double next_s = kNever;
        for (const Node& node : nodes_) next_s = std::min({next_s, node.next_s, node.lost_for_good_s});
        return next_s;
    }
    bool any_comes_back() const {
        return std::ranges::any_of(nodes_, [](const Node& node) { return node.lost && node.next_s < kNever; });
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
            if (node.lost_for_good_s <= now_s) {
                node.next_s = node.lost_for_good_s = kNever;
                if (!std::exchange(node.lost, true)) changed(n, false);
                continue;
            }
            if (node.next_s > now_s) continue;
            node.lost = !node.lost;
            node.next_s = node.lost ? now_s + std::max(1e-3, repair_s_) : next_failure_s(now_s);
            changed(n, !node.lost);
        }
    }

private:
    struct Node {
        double next_s = kNever;
        double lost_for_good_s = kNever;
        bool lost = false;
    };

    double next_failure_s(double now_s) {
        return lifetime_s_ == kNever ? kNever : now_s + std::max(1e-3, random_.exponential_s(lifetime_s_));
    }

    Random random_;
    double lifetime_s_;
    double repair_s_;
    std::vector<Node> nodes_;
};

}  // namespace larder::scheduler
