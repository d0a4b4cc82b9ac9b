#include "scheduler/policies/tenant_tree.h"

#include <algorithm>

namespace larder::scheduler {

TenantTree::TenantTree(std::span<const Tenant> tenants, std::span<const Leaf> leaves) : leaves_(leaves) {
    // Node 1 + t is tenant t.
    nodes_.resize(1 + tenants.size());
    for (std::uint32_t t = 0; t < tenants.size(); ++t) {
        nodes_[1 + t].weight = tenants[t].weight;
        const std::uint32_t above = tenants[t].parent < tenants.size() ? 1 + tenants[t].parent : 0;
        nodes_[above].below.push_back(1 + t);
    }
    std::vector<std::uint32_t> jobs_of(nodes_.size());
    for (std::uint32_t node = 0; node < jobs_of.size(); ++node) jobs_of[node] = node;
    for (std::uint32_t i = 0; i < leaves.size(); ++i) {
        const std::uint32_t tenant = leaves[i].tenant < tenants.size() ? 1 + leaves[i].tenant : 0;
        const bool has_tenants =
            std::ranges::any_of(nodes_[tenant].below, [&](std::uint32_t node) { return node <= tenants.size(); });
        if (has_tenants && jobs_of[tenant] == tenant) {
            jobs_of[tenant] = static_cast<std::uint32_t>(nodes_.size());
            nodes_[tenant].below.push_back(jobs_of[tenant]);
            nodes_.emplace_back();
        }
        nodes_[jobs_of[tenant]].below.push_back(static_cast<std::uint32_t>(nodes_.size()));
        nodes_.push_back({.weight = leaves[i].weight, .leaf = static_cast<std::int32_t>(i)});
    }
}

double TenantTree::sum_demands(std::uint32_t node, std::vector<double>& demands) const {
    const Node& at = nodes_[node];
    double sum = at.leaf >= 0 ? leaves_[static_cast<std::size_t>(at.leaf)].demand : 0;
    for (const std::uint32_t below : at.below) sum += sum_demands(below, demands);
    return demands[node] = sum;
}

void TenantTree::divide(std::uint32_t node, double amount, const std::vector<double>& demands,
                        std::vector<double>& amounts) const {
    const Node& at = nodes_[node];
    if (at.leaf >= 0) amounts[static_cast<std::size_t>(at.leaf)] = std::min(amount, demands[node]);
    // Tenants that need least for their weight come first, so that none has to give anything back.
    std::vector<std::uint32_t> order = at.below;
    std::ranges::stable_sort(order, {}, [&](std::uint32_t below) { return demands[below] / nodes_[below].weight; });
    double weights = 0;
    for (const std::uint32_t below : order) weights += nodes_[below].weight;
    for (const std::uint32_t below : order) {
        const double part = std::min(demands[below], amount * std::min(1.0, nodes_[below].weight / weights));
        divide(below, part, demands, amounts);
        amount -= part;
        weights -= nodes_[below].weight;
    }
}

std::vector<double> TenantTree::divide(double amount) const {
    std::vector<double> demands(nodes_.size()), amounts(leaves_.size());
    sum_demands(0, demands);
    divide(0, amount, demands, amounts);
    return amounts;
}

bool TenantTree::find_active(std::uint32_t node, const std::vector<bool>& active, std::vector<bool>& found) const {
    const Node& at = nodes_[node];
    bool any = at.leaf >= 0 && active[static_cast<std::size_t>(at.leaf)];
    for (const std::uint32_t below : at.below) any = find_active(below, active, found) || any;
    found[node] = any;
    return any;
}

void TenantTree::weigh(std::uint32_t node, double weight, const std::vector<bool>& found,
                       std::vector<double>& weights) const {
    const Node& at = nodes_[node];
    if (at.leaf >= 0) weights[static_cast<std::size_t>(at.leaf)] = weight;
    double sum = 0;
    for (const std::uint32_t below : at.below) sum += found[below] ? nodes_[below].weight : 0;
    for (const std::uint32_t below : at.below) {
        if (found[below]) weigh(below, weight * nodes_[below].weight / sum, found, weights);
    }
}

std::vector<double> TenantTree::weights(const std::vector<bool>& active) const {
    std::vector<bool> found(nodes_.size());
    std::vector<double> weights(leaves_.size());
    if (find_active(0, active, found)) weigh(0, 1, found, weights);
    return weights;
}

}  // namespace larder::scheduler
