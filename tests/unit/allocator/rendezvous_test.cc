#include "allocator/rendezvous.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

namespace larder::test {
namespace {

using namespace allocator;

constexpr std::uint32_t kBlocks = 100'000;

std::vector<WeightedNode> four_nodes() {
    return {{.id = 11, .weight = 1e9}, {.id = 22, .weight = 2e9}, {.id = 33, .weight = 3e9}, {.id = 44, .weight = 4e9}};
}

// The id of the node that keeps each block.
std::vector<std::uint64_t> keepers(std::uint64_t dataset, const std::vector<WeightedNode>& nodes) {
    std::vector<std::uint64_t> ids(kBlocks);
    for (std::uint32_t block = 0; block < kBlocks; ++block) ids[block] = nodes[node_of_block(dataset, block, nodes)].id;
    return ids;
}

// Sum of squared deviations over what is expected, with one degree of freedom less than there are nodes.
double chi_square(const std::vector<std::uint64_t>& kept_by, const std::vector<WeightedNode>& nodes) {
    double weights = 0;
    for (const WeightedNode& node : nodes) weights += node.weight;
    double sum = 0;
    for (const WeightedNode& node : nodes) {
        const double expected = kBlocks * node.weight / weights;
        const auto counted = static_cast<double>(std::ranges::count(kept_by, node.id));
        if (expected > 0) sum += (counted - expected) * (counted - expected) / expected;
    }
    return sum;
}

TEST(Rendezvous, EveryNodeKeepsItsWeightsPartOfTheBlocks) {
    // Of 3 degrees of freedom, passed by chance once in 10,000 datasets.
    constexpr double kUnlikely = 21.1;
    for (std::uint64_t dataset = 0; dataset < 20; ++dataset) {
        const auto nodes = four_nodes();
        EXPECT_LT(chi_square(keepers(dataset, nodes), nodes), kUnlikely) << "dataset " << dataset;
    }
}

TEST(Rendezvous, SharesAreFairForManyNodesOfVeryDifferentWeights) {
    std::vector<WeightedNode> nodes;
    for (std::uint64_t id = 0; id < 101; ++id) {
        nodes.push_back({.id = id, .weight = std::pow(1.05, static_cast<double>(id))});
    }
    // Of 100 degrees of freedom, passed by chance once in 10,000.
    constexpr double kUnlikely = 161.3;
    EXPECT_LT(chi_square(keepers(7, nodes), nodes), kUnlikely);
}

TEST(Rendezvous, DatasetsAreSpreadIndependently) {
    const auto nodes = four_nodes();
    const auto first = keepers(1, nodes);
    const auto second = keepers(2, nodes);
    int same = 0;
    for (std::uint32_t block = 0; block < kBlocks; ++block) same += first[block] == second[block];
    // By chance: 0.1^2 + 0.2^2 + 0.3^2 + 0.4^2.
    EXPECT_NEAR(same / static_cast<double>(kBlocks), 0.30, 0.01);
}

TEST(Rendezvous, ANodeWithoutQuotaKeepsNothing) {
    auto nodes = four_nodes();
    nodes[2].weight = 0;
    const auto kept_by = keepers(5, nodes);
    EXPECT_EQ(std::ranges::count(kept_by, 33u), 0);
    EXPECT_GT(std::ranges::count(kept_by, 11u), 0);
}

TEST(Rendezvous, AWeightThatGrowsMovesBlocksToItsNodeOnly) {
    const auto before = four_nodes();
    auto after = before;
    after[1].weight = 3e9;
    const auto kept_before = keepers(5, before);
    const auto kept_after = keepers(5, after);
    int moved = 0;
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
        if (kept_before[block] == kept_after[block]) continue;
        ++moved;
        EXPECT_EQ(kept_after[block], 22u) << "block " << block;
    }
    // As few as can be: its share grows from 2/10 to 3/11.
    EXPECT_NEAR(moved / static_cast<double>(kBlocks), 3.0 / 11 - 2.0 / 10, 0.005);
}

TEST(Rendezvous, AWeightThatShrinksMovesBlocksFromItsNodeOnly) {
    const auto before = four_nodes();
    auto after = before;
    after[3].weight = 1e9;
    const auto kept_before = keepers(5, before);
    const auto kept_after = keepers(5, after);
    int moved = 0;
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
        if (kept_before[block] == kept_after[block]) continue;
        ++moved;
        EXPECT_EQ(kept_before[block], 44u) << "block " << block;
    }
    EXPECT_NEAR(moved / static_cast<double>(kBlocks), 4.0 / 10 - 1.0 / 7, 0.005);
}

TEST(Rendezvous, ANodeThatLeavesMovesItsOwnBlocksOnly) {
    const auto before = four_nodes();
    auto after = before;
    after.erase(after.begin());
    const auto kept_before = keepers(5, before);
    const auto kept_after = keepers(5, after);
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
        if (kept_before[block] != 11) {
            EXPECT_EQ(kept_before[block], kept_after[block]) << "block " << block;
        }
    }
}

TEST(Rendezvous, OnlyTheProportionsOfWeightsMatter) {
    auto nodes = four_nodes();
    const auto kept_by = keepers(5, nodes);
    // By a power of two, so that no digit is lost.
    for (WeightedNode& node : nodes) node.weight *= 1024;
    EXPECT_EQ(keepers(5, nodes), kept_by);
}

TEST(Rendezvous, TheOrderOfTheNodesDoesNotMatter) {
    auto nodes = four_nodes();
    const auto kept_by = keepers(9, nodes);
    while (std::ranges::next_permutation(nodes, {}, &WeightedNode::id).found) {
        for (std::uint32_t block = 0; block < 1000; ++block) {
            ASSERT_EQ(nodes[node_of_block(9, block, nodes)].id, kept_by[block]) << "block " << block;
        }
    }
}

TEST(Rendezvous, TheSmallestWeightThereIsStillKeepsBlocks) {
    const std::array<WeightedNode, 2> nodes{{{.id = 1, .weight = 0}, {.id = 2, .weight = 5e-324}}};
    for (std::uint32_t block = 0; block < 1000; ++block) ASSERT_EQ(node_of_block(3, block, nodes), 1u);
}

// Nodes of different versions must agree on where blocks are.
TEST(Rendezvous, BlocksStayWhereTheyHaveAlwaysBeen) {
    const auto nodes = four_nodes();
    const auto where = [&](std::uint64_t dataset, std::uint32_t first) {
        std::string digits;
        for (std::uint32_t block = first; block < first + 40; ++block) {
            digits += static_cast<char>('0' + node_of_block(dataset, block, nodes));
        }
        return digits;
    };
    EXPECT_EQ(where(0, 0), "1002320302323311121223303213022302013233");
    EXPECT_EQ(where(0x1234'5678'9abc'def0, 0), "1223231332012333231101232311223323222133");
    EXPECT_EQ(where(1, 4'294'967'000), "2221201233232333303222333332111023332023");
}

}  // namespace
}  // namespace larder::test
