#include "scheduler/cells/gang_plan.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

#include "base/assert.h"
#include "scheduler/placement/pods.h"

namespace larder::scheduler {
namespace {

std::uint32_t evictions_needed(const NodeOffer& offer, std::uint32_t gpus) {
    return gpus - std::min(gpus, offer.without_eviction);
}

class Plan {
public:
    Plan(std::span<const NodeOffer> offers, std::uint32_t gpus, std::span<const std::uint32_t> pods)
        : offers_(offers), gpus_(gpus), pods_(pods) {}

    GangPlan make() {
        std::vector<OfferTaken> taken = choose();
        if (taken.empty()) return {};
        const PlanCost cost = cost_of(taken);
        return {.taken = std::move(taken), .cost = cost};
    }

private:
    struct Group {
        std::uint32_t first = 0;
        std::uint32_t count = 0;
    };

    std::vector<OfferTaken> choose() {
        std::array<std::uint32_t, kGpusPerNodeMax + 1> nodes_with{};
        std::uint64_t all = 0;
        std::uint32_t most = 0;
        for (const NodeOffer& offer : offers_) {
            ++nodes_with[offer.gpus];
            all += offer.gpus;
            most = std::max(most, offer.gpus);
        }
        if (all < gpus_ || gpus_ == 0) return {};
        if (most >= gpus_) return take_one_node();
        if (!pods_.empty()) {
            nodes_least_ = nodes_needed({.first = 0, .count = static_cast<std::uint32_t>(offers_.size())});
            if (nodes_least_ == 0) return {};
        }
        for (std::uint32_t wanted = pods_.empty() ? gpus_ : 0; wanted > 0;) {
            while (nodes_with[most] == 0) --most;
            --nodes_with[most];
            wanted -= std::min(wanted, most);
            ++nodes_least_;
        }
        if (const auto group = closest_group()) return pack(*group);
        std::vector<std::uint32_t> every(offers_.size());
        std::iota(every.begin(), every.end(), 0U);
        return pack(std::move(every));
    }

    PlanCost cost_of(std::span<const OfferTaken> taken) const {
        PlanCost cost{.nodes = static_cast<std::uint32_t>(taken.size())};
        const NodeOffer& first = offers_[taken.front().offer];
        std::uint32_t level = first.hierarchy->node_level();
        for (const OfferTaken& one : taken) {
            const NodeOffer& offer = offers_[one.offer];
            cost.takes_pinned = cost.takes_pinned || offer.pinned;
            cost.left_over += offer.gpus - one.gpus;
            cost.fresh = cost.fresh || offer.fresh;
            cost.virtual_cell_gpus = std::max(cost.virtual_cell_gpus, offer.virtual_cell_gpus);
            cost.evictions += evictions_needed(offer, one.gpus);
            cost.near = std::min(cost.near, offer.near);
            const bool same_cell =
                offer.hierarchy_index == first.hierarchy_index && offer.virtual_cell == first.virtual_cell;
            const auto cell = [&](const NodeOffer& at) { return at.node / first.hierarchy->node_count(level); };
            while (level < first.hierarchy->levels() && (!same_cell || cell(offer) != cell(first))) ++level;
        }
        cost.levels_above_node = level - first.hierarchy->node_level();
        return cost;
    }

    std::vector<OfferTaken> take_one_node() const {
        std::uint32_t best = kNone;
        const auto key = [&](std::uint32_t o) {
            const NodeOffer& offer = offers_[o];
            return std::tuple(offer.gpus, offer.pinned, offer.fresh, offer.virtual_cell_gpus,
                              evictions_needed(offer, gpus_), offer.near);
        };
        for (std::uint32_t o = 0; o < offers_.size(); ++o) {
            if (offers_[o].gpus < gpus_) continue;
            if (best == kNone || (offers_[o].gpus <= offers_[best].gpus && key(o) < key(best))) best = o;
        }
        return {{.offer = best, .gpus = gpus_}};
    }

    // Returns the fewest nodes of the group that have enough GPUs; 0: the whole group has too few.
    std::uint32_t nodes_needed(Group group) {
        sizes_.clear();
        std::uint32_t all = 0;
        for (std::uint32_t o = group.first; o < group.first + group.count; ++o) {
            sizes_.push_back(offers_[o].gpus);
            all += offers_[o].gpus;
        }
        if (all < gpus_) return 0;
        std::ranges::sort(sizes_, std::ranges::greater{});
        if (!pods_.empty()) return static_cast<std::uint32_t>(pack_pods(sizes_, pods_).size());
        std::uint32_t nodes = 0;
        for (std::uint32_t got = 0; got < gpus_; ++nodes) got += sizes_[nodes];
        return nodes;
    }

    // Returns the offers within the smallest cell that has room for the gang on nodes_least_ nodes.
    std::optional<std::vector<std::uint32_t>> closest_group() {
        std::optional<Group> best;
        std::tuple<std::uint32_t, std::uint32_t, bool> best_key;
        for (std::uint32_t first = 0; first < offers_.size();) {
            const NodeOffer& first_offer = offers_[first];
            std::uint32_t end = first;
            while (end < offers_.size() && offers_[end].virtual_cell == first_offer.virtual_cell &&
                   offers_[end].hierarchy_index == first_offer.hierarchy_index) {
                ++end;
            }
            const std::uint32_t node_level = first_offer.hierarchy->node_level();
            for (std::uint32_t level = node_level + 1;
                 level <= first_offer.level && first_offer.virtual_cell_gpus >= gpus_; ++level) {
                if (best && level - node_level > std::get<0>(best_key)) break;
                const std::uint32_t nodes = first_offer.hierarchy->node_count(level);
                for (std::uint32_t o = first; o < end;) {
                    Group group{.first = o, .count = 0};
                    std::uint32_t free = 0;
                    const std::uint32_t cell = offers_[o].node / nodes;
                    for (; o < end && offers_[o].node / nodes == cell; ++o) {
                        ++group.count;
                        free += offers_[o].gpus;
                    }
                    const std::tuple key(level - node_level, free - gpus_, first_offer.fresh);
                    if (free < gpus_ || (best && best_key <= key) || nodes_needed(group) != nodes_least_) continue;
                    best = group;
                    best_key = key;
                }
            }
            first = end;
        }
        if (!best) return std::nullopt;
        std::vector<std::uint32_t> offers(best->count);
        std::iota(offers.begin(), offers.end(), best->first);
        return offers;
    }

    std::vector<OfferTaken> pack_pods_into(std::span<const std::uint32_t> offers) const {
        std::vector<std::uint32_t> free;
        free.reserve(offers.size());
        for (const std::uint32_t o : offers) free.push_back(offers_[o].gpus);
        std::vector<OfferTaken> taken;
        for (const PodNode& one : pack_pods(free, pods_)) {
            taken.push_back({.offer = offers[one.node], .gpus = one.gpus});
        }
        return taken;
    }

    // Takes the nodes with the most GPUs, and as the last node the one with the fewest GPUs left over.
    std::vector<OfferTaken> pack(std::vector<std::uint32_t> offers) const {
        const auto ranks_before = [&](std::uint32_t a, std::uint32_t b) {
            const NodeOffer& x = offers_[a];
            const NodeOffer& y = offers_[b];
            if (x.gpus != y.gpus) return x.gpus > y.gpus;
            if (x.pinned != y.pinned) return y.pinned;
            if (x.fresh != y.fresh) return y.fresh;
            if (x.virtual_cell_gpus != y.virtual_cell_gpus) return x.virtual_cell_gpus > y.virtual_cell_gpus;
            return std::tuple(y.without_eviction, x.near, a) < std::tuple(x.without_eviction, y.near, b);
        };
        if (!pods_.empty()) {
            std::ranges::sort(offers, ranks_before);
            return pack_pods_into(offers);
        }
        const auto full_nodes = static_cast<std::ptrdiff_t>(nodes_least_ - 1);
        std::ranges::partial_sort(offers, offers.begin() + full_nodes, ranks_before);
        std::vector<OfferTaken> taken;
        std::uint32_t left = gpus_;
        for (std::ptrdiff_t i = 0; i < full_nodes; ++i) {
            const std::uint32_t o = offers[static_cast<std::size_t>(i)];
            taken.push_back({.offer = o, .gpus = offers_[o].gpus});
            left -= offers_[o].gpus;
        }
        std::vector<std::pair<std::uint32_t, std::uint32_t>> full_cells;
        full_cells.reserve(taken.size());
        for (const OfferTaken& one : taken)
            full_cells.emplace_back(offers_[one.offer].hierarchy_index, offers_[one.offer].virtual_cell);
        std::ranges::sort(full_cells);
        const auto key = [&](std::uint32_t o) {
            const NodeOffer& offer = offers_[o];
            const bool in_other_virtual_cell =
                !std::ranges::binary_search(full_cells, std::pair(offer.hierarchy_index, offer.virtual_cell));
            return std::tuple(offer.gpus, offer.pinned, in_other_virtual_cell, offer.fresh, offer.virtual_cell_gpus,
                              evictions_needed(offer, left), offer.near, o);
        };
        std::uint32_t last = kNone;
        for (auto o = offers.begin() + full_nodes; o != offers.end(); ++o) {
            if (offers_[*o].gpus < left) continue;
            if (last == kNone || (offers_[*o].gpus <= offers_[last].gpus && key(*o) < key(last))) last = *o;
        }
        LARDER_ASSERT(last != kNone);
        taken.push_back({.offer = last, .gpus = left});
        return taken;
    }

    std::span<const NodeOffer> offers_;
    std::uint32_t gpus_;
    std::span<const std::uint32_t> pods_;
    std::uint32_t nodes_least_ = 0;
    std::vector<std::uint32_t> sizes_;
};

std::uint64_t pick_within(const Hierarchy& hierarchy, CellId cell, std::uint64_t from, std::uint64_t avoid,
                          std::uint32_t count) {
    const std::uint64_t here = from & hierarchy.gpus_of(cell);
    if (count_of(here) == count) return here;
    LARDER_ASSERT(count_of(here) > count && cell.level > 0);
    const std::uint32_t fan = hierarchy.cells_in(cell.level, cell.level - 1);
    std::uint64_t picked = 0;
    while (count > 0) {
        // Prefer a child with enough GPUs: with the fewest to avoid, then the fewest left over. Else take the one with
        // the most.
        CellId best;
        std::tuple<bool, std::uint32_t, std::uint32_t> best_key;
        bool found = false;
        for (std::uint32_t i = 0; i < fan; ++i) {
            const CellId child{cell.level - 1, cell.index * fan + i};
            const std::uint64_t available = here & ~picked & hierarchy.gpus_of(child);
            if (available == 0) continue;
            const std::uint32_t without_eviction = std::min(count, count_of(available & ~avoid));
            const bool enough = count_of(available) >= count;
            const std::tuple key(!enough, enough ? count - without_eviction : ~count_of(available),
                                 enough ? count_of(available) : ~without_eviction);
            if (found && best_key <= key) continue;
            best = child;
            best_key = key;
            found = true;
        }
        LARDER_ASSERT(found);
        const std::uint64_t available = here & ~picked & hierarchy.gpus_of(best);
        const std::uint32_t taken = std::min(count, count_of(available));
        picked |= pick_within(hierarchy, best, available, avoid, taken);
        count -= taken;
    }
    return picked;
}

}  // namespace

GangPlan plan_gang(std::span<const NodeOffer> offers, std::uint32_t gpus, std::span<const std::uint32_t> pods) {
    return Plan(offers, gpus, pods).make();
}

GangPlan plan_gang_within(std::span<const NodeOffer> offers, std::uint32_t level, std::uint32_t gpus,
                          std::span<const std::uint32_t> pods) {
    GangPlan best;
    for (std::size_t first = 0; first < offers.size();) {
        const NodeOffer& of_cell = offers[first];
        const Hierarchy& hierarchy = *of_cell.hierarchy;
        // A virtual cell below the level lies within one cell of the level.
        const std::uint32_t nodes = hierarchy.node_count(std::min(level, of_cell.level));
        std::size_t end = first;
        while (end < offers.size() && offers[end].virtual_cell == of_cell.virtual_cell &&
               offers[end].node / nodes == of_cell.node / nodes) {
            ++end;
        }
        GangPlan found = plan_gang(offers.subspan(first, end - first), gpus, pods);
        if (!found.taken.empty() && (best.taken.empty() || found.cost < best.cost)) {
            for (OfferTaken& taken : found.taken) taken.offer += static_cast<std::uint32_t>(first);
            best = std::move(found);
        }
        first = end;
    }
    return best;
}

std::uint64_t pick_gpus(const Hierarchy& hierarchy, std::uint64_t from, std::uint64_t avoid, std::uint32_t count) {
    return pick_within(hierarchy, {hierarchy.node_level(), 0}, from, avoid, count);
}

}  // namespace larder::scheduler
