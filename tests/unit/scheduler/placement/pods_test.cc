#include "scheduler/placement/pods.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "tests/support/property_cases.h"
#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler::tests {
namespace {

using Sizes = std::vector<std::uint32_t>;

std::vector<std::pair<std::uint32_t, std::uint32_t>> packed(const Sizes& free, const Sizes& pods) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> nodes;
    for (const PodNode& one : pack_pods(free, pods)) nodes.emplace_back(one.node, one.gpus);
    return nodes;
}

TEST(Pods, EachLiesOnOneNode) {
    using Nodes = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
    EXPECT_EQ(packed({8, 8}, {7, 5}), (Nodes{{0, 7}, {1, 5}}));
    EXPECT_EQ(packed({8, 4}, {7, 5}), Nodes{}) << "12 GPUs are free, but 5 not on one node";
    EXPECT_EQ(packed({8, 8, 5}, {7, 5}), (Nodes{{0, 7}, {2, 5}})) << "the fewest GPUs are left over";
    EXPECT_EQ(packed({8, 4}, {3, 3, 2}), (Nodes{{0, 8}})) << "one node is enough";
    EXPECT_EQ(packed({7, 5}, {5, 4, 3}), (Nodes{{0, 7}, {1, 5}})) << "only one order fits";
    EXPECT_EQ(packed({}, {1}), Nodes{});
}

// Returns the fewest nodes that hold the pods, by trying every assignment; 0: none holds them.
std::size_t fewest_nodes(const Sizes& free, const Sizes& pods) {
    std::size_t fewest = 0;
    Sizes left = free;
    std::vector<std::uint32_t> node_of;
    const std::function<void()> place_next = [&] {
        if (node_of.size() == pods.size()) {
            const std::size_t nodes = std::set(node_of.begin(), node_of.end()).size();
            if (fewest == 0 || nodes < fewest) fewest = nodes;
            return;
        }
        const std::uint32_t size = pods[node_of.size()];
        for (std::uint32_t node = 0; node < left.size(); ++node) {
            if (left[node] < size) continue;
            left[node] -= size;
            node_of.push_back(node);
            place_next();
            node_of.pop_back();
            left[node] += size;
        }
    };
    place_next();
    return fewest;
}

TEST(Pods, FewestNodesAreFoundWheneverThePodsFit) {
    TestRandom random(11);
    std::size_t fitting = 0;
    for (std::uint64_t round = 0; round < test::property_cases(3000); ++round) {
        Sizes free(1 + random.below(5));
        Sizes pods(1 + random.below(5));
        for (std::uint32_t& gpus : free) gpus = 1 + random.below(8);
        for (std::uint32_t& gpus : pods) gpus = 1 + random.below(7);
        std::ranges::sort(free, std::ranges::greater{});
        const auto nodes = pack_pods(free, pods);
        ASSERT_EQ(nodes.size(), fewest_nodes(free, pods)) << "round " << round;
        if (nodes.empty()) continue;
        ++fitting;
        std::set<std::uint32_t> used;
        std::uint32_t gpus = 0;
        for (const PodNode& one : nodes) {
            ASSERT_TRUE(used.insert(one.node).second);
            ASSERT_LE(one.gpus, free[one.node]);
            gpus += one.gpus;
        }
        ASSERT_EQ(gpus, std::accumulate(pods.begin(), pods.end(), 0U));
    }
    EXPECT_GT(fitting, test::property_cases(500));
}

}  // namespace
}  // namespace larder::scheduler::tests
