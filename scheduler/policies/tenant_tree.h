#pragma once

// Tenants as a tree with demands at its leaves. If a tenant has both jobs and tenants below it, its jobs together count
// as one more tenant there, of weight 1.

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/snapshot.h"

namespace larder::scheduler {

struct Leaf {
    std::uint32_t tenant = 0;
    double weight = 1;  // of all its jobs
    double demand = 0;  // the most that it can use
};

class TenantTree {
public:
    TenantTree(std::span<const Tenant> tenants, std::span<const Leaf> leaves);

    // Divides `amount` among the leaves by weight, at each tenant. The part that a leaf or tenant cannot use goes to
    // its siblings.
    std::vector<double> divide(double amount) const;
    // Returns each active leaf's part of the whole by weight, without the inactive leaves; inactive leaves get 0.
    std::vector<double> weights(const std::vector<bool>& active) const;

private:
    struct Node {
        double weight = 1;
        std::int32_t leaf = -1;
        std::vector<std::uint32_t> below;  // indices of nodes
    };

    double sum_demands(std::uint32_t node, std::vector<double>& demands) const;
    void divide(std::uint32_t node, double amount, const std::vector<double>& demands,
                std::vector<double>& amounts) const;
    bool find_active(std::uint32_t node, const std::vector<bool>& active, std::vector<bool>& found) const;
    void weigh(std::uint32_t node, double weight, const std::vector<bool>& found, std::vector<double>& weights) const;

    std::span<const Leaf> leaves_;
    std::vector<Node> nodes_;  // the root is the first
};

}  // namespace larder::scheduler
