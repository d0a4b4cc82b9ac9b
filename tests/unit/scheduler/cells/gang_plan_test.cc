#include "scheduler/cells/gang_plan.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/unit/scheduler/cells/random_cells.h"

namespace larder::scheduler::tests {
namespace {

HierarchyConfig pods() {  // nodes of 4 GPUs, racks of 3 nodes, pods of 2 racks
    HierarchyConfig config{
        .name = "h", .gpu_type = "a", .levels = {{"node", 4}, {"rack", 3}, {"pod", 2}}, .node_level = 1, .nodes = {}};
    for (std::uint32_t n = 0; n < 24; ++n) config.nodes.push_back("n" + std::to_string(n));
    return config;
}

// Returns the lowest level at which one cell contains all these nodes.
std::uint32_t common_level(const Hierarchy& hierarchy, const std::vector<std::uint32_t>& nodes) {
    std::uint32_t level = hierarchy.node_level();
    const auto same = [&](std::uint32_t above) {
        for (const std::uint32_t node : nodes) {
            if (hierarchy.ancestor({hierarchy.node_level(), node}, above) !=
                hierarchy.ancestor({hierarchy.node_level(), nodes[0]}, above)) {
                return false;
            }
        }
        return true;
    };
    while (level < hierarchy.levels() && !same(level)) ++level;
    return level;
}

// Compares with all subsets of the nodes: the plan uses as few nodes as possible and, among the smallest sets, the
// closest one.
TEST(GangPlan, UsesFewestAndClosestNodes) {
    const Hierarchy hierarchy(pods());
    Dice dice(3);
    for (std::uint32_t round = 0; round < 3000; ++round) {
        std::vector<NodeOffer> offers;
        std::vector<std::uint32_t> virtual_cell_gpus(2);
        std::uint32_t all = 0;
        for (std::uint32_t node = 0; node < 12; ++node) {  // each of the two pods is a virtual cell
            const std::uint32_t gpus = dice.between(0, 4);
            if (gpus == 0) continue;
            offers.push_back({.hierarchy = &hierarchy,
                              .hierarchy_index = 0,
                              .virtual_cell = node / 6,
                              .level = 3,
                              .node = node,
                              .fresh = false,
                              .gpus = gpus,
                              .without_eviction = dice.between(0, gpus)});
            virtual_cell_gpus[node / 6] += gpus;
            all += gpus;
        }
        for (NodeOffer& offer : offers) offer.virtual_cell_gpus = virtual_cell_gpus[offer.virtual_cell];
        const std::uint32_t gpus = dice.between(1, 26);
        const auto plan = plan_gang(offers, gpus).taken;
        ASSERT_EQ(plan.empty(), gpus > all);
        if (plan.empty()) continue;
        std::uint32_t taken = 0;
        std::vector<std::uint32_t> nodes;
        for (const OfferTaken& part : plan) {
            ASSERT_LE(part.gpus, offers[part.offer].gpus);
            taken += part.gpus;
            nodes.push_back(offers[part.offer].node);
        }
        ASSERT_EQ(taken, gpus);
        std::pair<std::uint32_t, std::uint32_t> best(99, 99);
        for (std::uint32_t set = 1; set < 1U << offers.size(); ++set) {
            std::uint32_t has = 0;
            std::vector<std::uint32_t> chosen;
            for (std::uint32_t o = 0; o < offers.size(); ++o) {
                if ((set >> o & 1) == 0) continue;
                has += offers[o].gpus;
                chosen.push_back(offers[o].node);
            }
            if (has < gpus || chosen.size() > best.first) continue;
            best =
                std::min(best, std::pair(static_cast<std::uint32_t>(chosen.size()), common_level(hierarchy, chosen)));
        }
        ASSERT_EQ(nodes.size(), best.first);
        ASSERT_EQ(common_level(hierarchy, nodes), best.second);
    }
}

NodeOffer offer(const Hierarchy& hierarchy, std::uint32_t virtual_cell, std::uint32_t gpus) {
    return {.hierarchy = &hierarchy,
            .hierarchy_index = 0,
            .virtual_cell = virtual_cell,
            .level = 1,
            .node = virtual_cell,
            .fresh = false,
            .gpus = gpus,
            .without_eviction = gpus,
            .virtual_cell_gpus = gpus};
}

TEST(GangPlan, TiesAreBrokenByPreference) {
    const Hierarchy hierarchy(pods());
    std::vector<NodeOffer> offers{offer(hierarchy, 0, 4), offer(hierarchy, 1, 3), offer(hierarchy, 2, 3),
                                  offer(hierarchy, 3, 3), offer(hierarchy, 4, 3)};
    offers[1].fresh = true;
    offers[2].without_eviction = 0;
    offers[4].near = 0;
    ASSERT_EQ(plan_gang(offers, 2).taken.size(), 1U);
    EXPECT_EQ(plan_gang(offers, 2).taken[0].offer, 4U);  // near the data
    offers[4].without_eviction = 0;
    EXPECT_EQ(plan_gang(offers, 2).taken[0].offer, 3U);  // no job has to stop
    offers[3].gpus = 0;
    offers[4].gpus = 0;
    EXPECT_EQ(plan_gang(offers, 2).taken[0].offer, 2U);  // bound already
    offers[2].gpus = 0;
    EXPECT_EQ(plan_gang(offers, 2).taken[0].offer, 1U);  // fewest GPUs left over
}

TEST(PickGpus, PicksWithinSmallestCell) {
    const HierarchyConfig config{.name = "h",
                                 .gpu_type = "a",
                                 .levels = {{"pair", 2}, {"switch", 2}, {"node", 2}},
                                 .node_level = 3,
                                 .nodes = {"n"}};
    const Hierarchy hierarchy(config);
    EXPECT_EQ(pick_gpus(hierarchy, 0b1111'1111, 0, 2), 0b0000'0011U);
    EXPECT_EQ(pick_gpus(hierarchy, 0b1111'1110, 0, 2), 0b0000'1100U);
    EXPECT_EQ(pick_gpus(hierarchy, 0b1111'1110, 0, 1), 0b0000'0010U);
    EXPECT_EQ(pick_gpus(hierarchy, 0b1111'1110, 0, 4), 0b1111'0000U);
    EXPECT_EQ(pick_gpus(hierarchy, 0b1111'1111, 0b0000'1111, 2), 0b0011'0000U);  // without the GPUs to avoid
    EXPECT_EQ(pick_gpus(hierarchy, 0b0110'0111, 0, 4), 0b0010'0111U);
    EXPECT_EQ(pick_gpus(hierarchy, 0b1010'0101, 0, 4), 0b1010'0101U);
}

}  // namespace
}  // namespace larder::scheduler::tests
