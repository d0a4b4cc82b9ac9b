#include "scheduler/policies/water_filling.h"

#include <algorithm>
#include <numeric>

#include "scheduler/policies/max_min.h"
#include "scheduler/policies/tenant_tree.h"

namespace larder::scheduler {
namespace {

// Indices in Kind::terms.
constexpr std::size_t kTenant = 0;
constexpr std::size_t kWeight = 1;
constexpr std::size_t kEqualShareRate = 2;

// After this many levels the rest is shared out at once, regardless of the hierarchy.
constexpr int kLevelsMax = 40;

}  // namespace

void WaterFilling::set_terms(const Snapshot& snapshot, const JobState& job, double, std::span<double> rates,
                             std::span<double> terms) const {
    terms[kTenant] = job.spec->tenant;
    terms[kWeight] = job.spec->weight;
    terms[kEqualShareRate] = equal_share_rate(snapshot, rates);
}

Result<Shares> WaterFilling::allocate(const Snapshot& snapshot, const Kinds& kinds) {
    const std::size_t count = kinds.kinds.size();
    std::vector<Leaf> leaves;
    leaves.reserve(count);
    for (const Kind& kind : kinds.kinds) {
        leaves.push_back({.tenant = static_cast<std::uint32_t>(kind.terms[kTenant]),
                          .weight = kind.terms[kWeight] * kind.jobs,
                          .demand = kind.gpus * kind.jobs});
    }
    const TenantTree tree(snapshot.tenants, leaves);
    if (types_are_one(kinds)) {
        const double all = std::accumulate(kinds.gpus_by_type.begin(), kinds.gpus_by_type.end(), 0.0);
        std::vector<double> parts = tree.divide(all);
        for (std::size_t k = 0; k < count; ++k) parts[k] /= leaves[k].demand;
        return spread_over_types(kinds, parts);
    }

    std::vector<bool> rising(count, true);
    std::vector<double> floors(count), needs(count);
    Result<Shares> shares;
    for (int levels = 0; levels < kLevelsMax && std::ranges::find(rising, true) != rising.end(); ++levels) {
        const std::vector<double> weights = tree.weights(rising);
        for (std::size_t k = 0; k < count; ++k) {
            const Kind& kind = kinds.kinds[k];
            needs[k] = kind.terms[kEqualShareRate] * weights[k] / leaves[k].demand;
        }
        shares = shares_at_highest_level(kinds, needs, floors, false);
        if (!shares) return shares;
        bool stopped = false;
        for (std::size_t k = 0; k < count; ++k) {
            if (!rising[k]) continue;
            floors[k] += shares->level * needs[k] * (1 - 1e-9);
            if (!shares->binding[k]) continue;
            rising[k] = false;
            stopped = true;
        }
        if (!stopped) break;
    }
    std::ranges::fill(needs, 0);
    return shares_at_highest_level(kinds, needs, floors);
}

}  // namespace larder::scheduler
