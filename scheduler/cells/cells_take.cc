// The part of Cells that finds a gang's place within its virtual cluster.

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "scheduler/cells/cells.h"
#include "scheduler/placement/gang_rate.h"

namespace larder::scheduler {
bool Cells::collect(std::uint32_t cluster, const PlaceRequest& request, std::uint32_t gpus) {
    offers_.clear();
    std::uint64_t all = 0;
    bool one_node = false;  // some node has enough: nodes with fewer do not matter
    for (std::uint32_t h = 0; h < hierarchies_.size(); ++h) {
        if (type_of_[h] != request.gpu_type) continue;
        const SharedHierarchy& shared = hierarchies_[h];
        const Hierarchy& cells = shared.cells();
        for (std::uint32_t level = 0; level < cells.levels() && !scarce_[h]; ++level) {
            all += std::uint64_t{shared.unbound(cluster, level)} * cells.gpus_in(level);
        }
        shared.list_for_gang(cluster, gpus, !scarce_[h], roots_);
        for (const std::uint32_t number : roots_) {
            const VirtualCell& root = shared.root(number);
            const std::uint32_t size = cells.gpus_in(root.level);
            if (root.index == kNone) {
                const std::uint32_t per_node = std::min(size, cells.node_gpus());
                for (std::uint32_t n = 0; n < cells.node_count(root.level); ++n) {
                    offers_.push_back({.hierarchy = &cells,
                                       .hierarchy_index = h,
                                       .root = number,
                                       .level = root.level,
                                       .node = n,
                                       .fresh = true,
                                       .gpus = per_node,
                                       .without_eviction = per_node,
                                       .root_free = size});
                }
                continue;
            }
            const CellId cell{root.level, root.index};
            const std::uint64_t mask =
                root.level >= cells.node_level() ? lowest_bits(~0ULL, cells.node_gpus()) : cells.gpus_of(cell);
            const std::size_t first_offer = offers_.size();
            std::uint32_t root_free = 0;
            const std::uint32_t first = cells.first_node(cell);
            for (std::uint32_t node = first; node < first + cells.node_count(root.level); ++node) {
                const NodeUse& use = shared.use(node);
                const std::uint64_t free = mask & ~use.held;
                if (free == 0 || cells.is_bad(node)) continue;
                root_free += count_of(free);
                if (one_node && count_of(free) < gpus) continue;
                one_node = one_node || count_of(free) >= gpus;
                NodeOffer offer{.hierarchy = &cells,
                                .hierarchy_index = h,
                                .root = number,
                                .level = root.level,
                                .node = node,
                                .fresh = false,
                                .gpus = count_of(free),
                                .without_eviction = count_of(free & ~use.opportunistic)};
                if (!request.near.empty()) {
                    const auto near = std::ranges::find(request.near, to_cluster(h, node));
                    if (near != request.near.end())
                        offer.near = static_cast<std::uint32_t>(near - request.near.begin());
                }
                offers_.push_back(offer);
            }
            all += root_free;
            for (std::size_t o = first_offer; o < offers_.size(); ++o) offers_[o].root_free = root_free;
        }
    }
    return all >= gpus;
}

// Binds all virtual cells that can be bound in the hierarchies where bad nodes leave claims unserved: what a virtual
// cell can offer there is known only once it is bound. Returns true if a hierarchy of the GPU type is such.
bool Cells::bind_all(std::uint32_t cluster, std::uint32_t gpu_type) {
    bool any = false;
    for (std::uint32_t h = 0; h < hierarchies_.size(); ++h) {
        SharedHierarchy& shared = hierarchies_[h];
        scarce_[h] = !shared.cells().all_served();
        if (type_of_[h] != gpu_type || !scarce_[h]) continue;
        any = true;
        for (std::uint32_t level = shared.cells().levels(); level-- > 0;) {
            while (shared.bind(cluster, level, {}) != kNone) {
            }
        }
    }
    return any;
}

void Cells::unbind_idle() {
    for (std::uint32_t h = 0; h < hierarchies_.size(); ++h) {
        hierarchies_[h].settle();
        scarce_[h] = false;
    }
}

// Takes GPUs from the last collected offers, which must suffice.
Placement Cells::take_few_nodes(std::uint32_t cluster, const PlaceRequest& request, std::uint32_t gpus) {
    Placement placement;
    struct Bound {
        std::uint32_t hierarchy;
        std::uint32_t root;  // NodeOffer::root
        std::uint32_t cell;
    };
    std::vector<Bound> bound;
    std::uint32_t beside = kNone;
    std::vector<std::uint32_t> near;
    for (const OfferTaken& taken : plan_gang(offers_, gpus)) {
        const NodeOffer& offer = offers_[taken.offer];
        SharedHierarchy& shared = hierarchies_[offer.hierarchy_index];
        const Hierarchy& cells = shared.cells();
        std::uint32_t number = offer.root;
        std::uint32_t node = offer.node;
        if (offer.fresh) {
            const auto known = std::ranges::find_if(bound, [&](const Bound& one) {
                return one.hierarchy == offer.hierarchy_index && one.root == offer.root;
            });
            if (known == bound.end()) {
                near.clear();
                for (const std::uint32_t n : request.near) {
                    if (n < locations_.size() && locations_[n].hierarchy == offer.hierarchy_index)
                        near.push_back(locations_[n].node);
                }
                const bool same_hierarchy = beside != kNone && locations_[beside].hierarchy == offer.hierarchy_index;
                number = shared.bind(cluster, offer.level,
                                     {.near = near, .beside = same_hierarchy ? locations_[beside].node : kNone});
                LARDER_ASSERT(number != kNone);
                bound.push_back({offer.hierarchy_index, offer.root, number});
            } else {
                number = known->cell;
            }
            node += cells.first_node({offer.level, shared.root(number).index});
        }
        const CellId cell{offer.level, shared.root(number).index};
        const std::uint64_t mask =
            offer.level >= cells.node_level() ? lowest_bits(~0ULL, cells.node_gpus()) : cells.gpus_of(cell);
        const NodeUse use = shared.use(node);
        const std::uint64_t picked = pick_gpus(cells, mask & ~use.held, use.opportunistic, taken.gpus);
        beside = to_cluster(offer.hierarchy_index, node);
        hold(beside, picked);
        placement.push_back({.node = beside, .gpus = picked});
    }
    return placement;
}

Placement Cells::take_near(std::uint32_t cluster, const PlaceRequest& request) {
    struct Near {
        std::uint32_t node;
        std::uint32_t gpus;
    };
    const auto owned = [&](std::uint32_t node) {
        const SharedHierarchy& shared = at(locations_[node]);
        if (shared.cells().is_bad(locations_[node].node)) return std::uint64_t{0};
        return shared.gpus_owned(cluster, locations_[node].node) & ~shared.use(locations_[node].node).held;
    };
    std::vector<Near> candidates;
    for (const std::uint32_t node : request.near) {
        if (node >= locations_.size() || type_of_[locations_[node].hierarchy] != request.gpu_type) continue;
        SharedHierarchy& shared = at(locations_[node]);
        std::uint32_t gpus = shared.cells().node_gpus();
        if (!shared.cell_to_cover(cluster, locations_[node].node)) {
            shared.cover_node(cluster, locations_[node].node);
            gpus = count_of(owned(node));
            unbind_idle();
        }
        if (gpus > 0) candidates.push_back({.node = node, .gpus = gpus});
        if (gpus == request.gpus) break;  // no other candidate ranks before an exact fit
    }
    // Candidates with enough GPUs come first, the fewest GPUs first; then the others, the most GPUs first.
    const auto ranks_before = [&](const Near& a, const Near& b) {
        const bool enough = a.gpus >= request.gpus;
        if (enough != (b.gpus >= request.gpus)) return enough;
        return enough ? a.gpus < b.gpus : a.gpus > b.gpus;
    };
    std::ranges::stable_sort(candidates, ranks_before);
    Placement placement;
    std::uint32_t wanted = request.gpus;
    for (const Near& near : candidates) {
        if (wanted == 0) break;
        SharedHierarchy& shared = at(locations_[near.node]);
        shared.cover_node(cluster, locations_[near.node].node);
        const std::uint64_t available = owned(near.node);
        const std::uint32_t gpus = std::min(wanted, count_of(available));
        if (gpus == 0) continue;
        const std::uint64_t picked =
            pick_gpus(shared.cells(), available, shared.use(locations_[near.node].node).opportunistic, gpus);
        hold(near.node, picked);
        placement.push_back({.node = near.node, .gpus = picked});
        wanted -= gpus;
    }
    if (wanted == 0) return placement;
    bind_all(cluster, request.gpu_type);
    if (!collect(cluster, request, wanted)) {
        release_gpus(placement);
        return {};
    }
    const Placement rest = take_few_nodes(cluster, request, wanted);
    placement.insert(placement.end(), rest.begin(), rest.end());
    return placement;
}

void Cells::release_gpus(const Placement& placement) {
    drop(placement);
    unbind_idle();
}

double Cells::rate(const PlaceRequest& request, const Placement& placement) const {
    std::vector<std::uint32_t> nodes;
    std::uint32_t near = 0;
    for (const NodeGpus& share : placement) {
        nodes.push_back(share.node);
        if (std::ranges::find(request.near, share.node) != request.near.end()) near += share.count();
    }
    std::ranges::sort(nodes);
    const auto duplicates = std::ranges::unique(nodes);
    const auto count = static_cast<std::uint32_t>(duplicates.begin() - nodes.begin());
    const std::uint32_t most = node_gpus_at_most_[request.gpu_type];
    return gang_rate(request, count, (request.gpus + most - 1) / most, near);
}

std::optional<Placement> Cells::take(std::uint32_t cluster, const PlaceRequest& request) {
    if (request.gpus == 0 || !collect(cluster, request, request.gpus)) return std::nullopt;
    bool collected = true;
    const auto few_nodes = [&] {
        const bool bound = bind_all(cluster, request.gpu_type);
        if ((bound || !std::exchange(collected, false)) && !collect(cluster, request, request.gpus)) {
            return Placement{};
        }
        return take_few_nodes(cluster, request, request.gpus);
    };
    Placement placement = few_nodes();
    if (placement.empty()) {
        unbind_idle();
        return std::nullopt;
    }
    if (!request.near.empty() && request.rate_far < 1) {
        const double few_nodes_rate = rate(request, placement);
        release_gpus(placement);
        placement = take_near(cluster, request);
        if (placement.empty() || rate(request, placement) <= few_nodes_rate) {
            if (!placement.empty()) release_gpus(placement);
            placement = few_nodes();
            LARDER_ASSERT(!placement.empty());
        }
    }
    // Merge the shares of several cells on one node.
    std::ranges::sort(placement, {}, &NodeGpus::node);
    Placement merged;
    for (const NodeGpus& share : placement) {
        if (!merged.empty() && merged.back().node == share.node) {
            merged.back().gpus |= share.gpus;
        } else {
            merged.push_back(share);
        }
    }
    return merged;
}

// Makes the virtual cluster hold exactly these GPUs, which no other job may hold. Returns false if it cannot.
bool Cells::claim_at(std::uint32_t cluster, const Placement& placement) {
    Placement done;
    for (SharedHierarchy& hierarchy : hierarchies_) hierarchy.unbind_bad_cells();
    for (const NodeGpus& share : placement) {
        if (!at(locations_[share.node]).cover(cluster, locations_[share.node].node, share.gpus)) break;
        hold(share.node, share.gpus);
        done.push_back(share);
    }
    const bool covered = done.size() == placement.size();
    if (!covered) drop(done);
    unbind_idle();
    return covered;
}

}  // namespace larder::scheduler
