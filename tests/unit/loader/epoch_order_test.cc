#include "loader/epoch_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/unit/loader/layout.h"

namespace larder::detail {
namespace {

using test::TestLayout;

std::vector<std::uint64_t> walk(const SampleLayout& layout, OrderOptions options) {
    EpochOrder order(layout, options);
    std::vector<std::uint64_t> samples;
    for (std::uint64_t p = 0; p < order.size(); ++p) samples.push_back(order.at(p).sample);
    return samples;
}

TEST(EpochOrder, VisitsEverySampleOnceWithItsOwnBlock) {
    std::mt19937_64 random(1);
    for (int round = 0; round < 300; ++round) {
        const TestLayout layout = TestLayout::random(random, 1 + random() % 200, random() % 9);
        EpochOrder order(layout, {.seed = random(),
                                  .epoch = random() % 5,
                                  .shuffle = round % 4 != 0,
                                  .window_blocks = static_cast<std::uint32_t>(1 + random() % 40)});
        std::vector<bool> seen(layout.sample_count());
        for (std::uint64_t p = 0; p < order.size(); ++p) {
            const OrderedSample at = order.at(p);
            const SampleRun run = layout.samples_of(at.block);
            ASSERT_GE(at.sample, run.first);
            ASSERT_LT(at.sample, run.first + run.count);
            ASSERT_FALSE(seen[at.sample]);
            seen[at.sample] = true;
        }
    }
}

TEST(EpochOrder, RandomAccessMatchesSequentialOrder) {
    std::mt19937_64 random(2);
    for (int round = 0; round < 50; ++round) {
        const TestLayout layout = TestLayout::random(random, 5 + random() % 20'000, 3);
        const OrderOptions options{.seed = 5, .epoch = 1, .window_blocks = static_cast<std::uint32_t>(1 + round % 3)};
        const auto expected = walk(layout, options);
        EpochOrder order(layout, options);
        for (int i = 0; i < 300 && !expected.empty(); ++i) {
            const std::uint64_t position = random() % expected.size();
            ASSERT_EQ(order.at(position).sample, expected[position]);
        }
    }
}

TEST(EpochOrder, MixesSamplesOnlyWithinAGroupOfBlocks) {
    std::mt19937_64 random(3);
    const TestLayout layout = TestLayout::uniform(64, 10);
    EpochOrder order(layout, {.seed = 9, .window_blocks = 8});
    for (std::uint64_t group = 0; group < 8; ++group) {
        std::set<std::uint32_t> blocks;
        bool in_order = true;
        for (std::uint64_t p = group * 80; p < (group + 1) * 80; ++p) {
            const OrderedSample at = order.at(p);
            EXPECT_EQ(at.group, group);
            blocks.insert(at.block);
            if (p > group * 80 && at.sample != order.at(p - 1).sample + 1) in_order = false;
        }
        EXPECT_EQ(blocks.size(), 8u);
        EXPECT_FALSE(in_order);
        EXPECT_NE(*blocks.rbegin() - *blocks.begin(), 7u) << "blocks of a group come from anywhere";
    }
}

TEST(EpochOrder, DependsOnlyOnSeedAndEpoch) {
    for (const TestLayout& layout : {TestLayout::uniform(1000, 1), TestLayout::uniform(100, 10)}) {
        const auto order = walk(layout, {.seed = 1, .epoch = 0});
        EXPECT_EQ(order, walk(layout, {.seed = 1, .epoch = 0}));
        EXPECT_NE(order, walk(layout, {.seed = 1, .epoch = 1}));
        EXPECT_NE(order, walk(layout, {.seed = 2, .epoch = 0}));
    }
}

TEST(EpochOrder, WithoutShuffleFollowsTheManifest) {
    for (const TestLayout& layout : {TestLayout::uniform(100, 1), TestLayout::uniform(30, 7)}) {
        const auto order = walk(layout, {.shuffle = false});
        for (std::uint64_t i = 0; i < order.size(); ++i) ASSERT_EQ(order[i], i);
    }
}

TEST(EpochOrder, OneSamplePerBlockIgnoresTheWindow) {
    const TestLayout layout = TestLayout::uniform(500, 1);
    EXPECT_EQ(walk(layout, {.seed = 1, .window_blocks = 1}), walk(layout, {.seed = 1, .window_blocks = 100}));
}

TEST(EpochOrder, MatchesItsGoldenValues) {
    const TestLayout layout = TestLayout::uniform(6, 3);
    EXPECT_EQ(walk(layout, {.seed = 42, .epoch = 3, .window_blocks = 4}),
              (std::vector<std::uint64_t>{15, 3, 7, 5, 16, 0, 4, 6, 1, 17, 8, 2, 9, 12, 11, 13, 14, 10}));
}

}  // namespace
}  // namespace larder::detail
