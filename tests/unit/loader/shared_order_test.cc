#include "loader/shared_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>

#include "tests/support/property_cases.h"
#include "tests/unit/loader/layout.h"

namespace larder::detail {
namespace {

using test::TestLayout;

ShareOptions random_options(std::mt19937_64& random) {
    return {.order = {.seed = random(),
                      .epoch = random() % 3,
                      .window_blocks = static_cast<std::uint32_t>(1 + random() % 9)},
            .rank = 0,
            .world_size = static_cast<std::uint32_t>(1 + random() % 5),
            .worker = 0,
            .worker_count = static_cast<std::uint32_t>(1 + random() % 3),
            .batch_size = static_cast<std::uint32_t>(1 + random() % 12),
            .drop_last = false};
}

// One order for each loader of the job. The blocks of each share come in random order, as the daemon chooses them.
std::vector<SharedOrder> orders_of(const TestLayout& layout, const DeliveredSamples& delivered, ShareOptions options,
                                   std::mt19937_64& random) {
    std::vector<SharedOrder> orders;
    for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
        for (options.worker = 0; options.worker < options.worker_count; ++options.worker) {
            SharedOrder& order = orders.emplace_back(layout, delivered, options);
            std::vector<std::uint32_t> blocks;
            for (std::uint32_t block = 0; block < layout.block_count(); ++block) {
                if (((order.share()[block / 64] >> (block % 64)) & 1) != 0) blocks.push_back(block);
            }
            EXPECT_EQ(blocks.size(), order.share_blocks());
            std::ranges::shuffle(blocks, random);
            for (const std::uint32_t block : blocks) order.add(block);
        }
    }
    return orders;
}

std::uint64_t own_batches(const SharedOrder& order) {
    std::uint64_t batches = 0;
    while (order.batch_samples(batches) > 0) ++batches;
    return batches;
}

TestLayout random_layout(std::mt19937_64& random) {
    return TestLayout::random(random, random() % 70, random() % 3 == 0 ? 0 : 1 + random() % 12);
}

TEST(SharedOrder, LoadersTogetherReadEachSampleOnce) {
    std::mt19937_64 random(1);
    for (std::uint64_t round = 0; round < test::property_cases(1500); ++round) {
        SCOPED_TRACE(round);
        const TestLayout layout = random_layout(random);
        ShareOptions options = random_options(random);
        options.drop_last = round % 2 == 1;
        std::vector<int> seen(layout.sample_count());
        std::vector<std::uint64_t> batches(options.world_size);
        std::uint32_t loader = 0;
        for (SharedOrder& order : orders_of(layout, DeliveredSamples(layout.block_count()), options, random)) {
            const std::uint32_t rank = loader++ / options.worker_count;
            std::uint64_t samples = 0;
            for (std::uint64_t i = 0; i < own_batches(order); ++i) samples += order.batch_samples(i);
            ASSERT_EQ(order.ready_samples(), samples);
            for (std::uint64_t position = 0; position < samples; ++position) {
                const OrderedSample ordered = order.at(position);
                const SampleRun run = layout.samples_of(ordered.block);
                ASSERT_TRUE(ordered.sample >= run.first && ordered.sample < run.first + run.count);
                ASSERT_EQ(++seen[ordered.sample], 1);
            }
            batches[rank] += own_batches(order);
            ASSERT_TRUE(loader % options.worker_count != 0 || batches[rank] == order.rank_batches());
        }
        const auto [fewest, most] = std::ranges::minmax(batches);
        if (options.drop_last) {
            ASSERT_EQ(fewest, most);
            ASSERT_EQ(most, layout.sample_count() / options.batch_size / options.world_size);
            ASSERT_EQ(static_cast<std::uint64_t>(std::ranges::count(seen, 1)),
                      most * options.world_size * options.batch_size);
        } else {
            ASSERT_LE(most - fewest, 1u);
            ASSERT_TRUE(std::ranges::all_of(seen, [](int count) { return count == 1; }));
        }
    }
}

TEST(SharedOrder, EachSampleIsDeliveredOnceOverAnyChainOfResumes) {
    std::mt19937_64 random(2);
    for (std::uint64_t round = 0; round < test::property_cases(1500); ++round) {
        SCOPED_TRACE(round);
        const TestLayout layout = random_layout(random);
        std::vector<int> seen(layout.sample_count());
        DeliveredSamples delivered(layout.block_count());
        const int legs = static_cast<int>(1 + random() % 5);
        for (int leg = 0; leg < legs; ++leg) {
            DeliveredSamples merged = delivered;
            for (SharedOrder& order : orders_of(layout, delivered, random_options(random), random)) {
                // Batch for batch, or at any sample: a state may come from either.
                const std::uint64_t stop =
                    leg + 1 == legs ? order.ready_samples() : random() % (order.ready_samples() + 1);
                for (std::uint64_t position = 0; position < stop; ++position) ++seen[order.at(position).sample];
                merged.merge(order.delivered_after(stop));
            }
            delivered = *DeliveredSamples::decode(merged.encode());
            for (std::uint32_t block = 0; block < layout.block_count(); ++block) {
                const SampleRun run = layout.samples_of(block);
                for (std::uint64_t i = 0; i < run.count; ++i) {
                    ASSERT_EQ(seen[run.first + i], delivered.has(block, i) ? 1 : 0) << block << " " << i;
                }
            }
        }
        ASSERT_TRUE(std::ranges::all_of(seen, [](int count) { return count == 1; }));
        for (const SharedOrder& order : orders_of(layout, delivered, random_options(random), random)) {
            ASSERT_EQ(order.share_blocks() + order.rank_batches(), 0u);
        }
    }
}

// The samples of a window have places once all its blocks are chosen, and later choices move none of them.
TEST(SharedOrder, SamplesArePermutedWithinTheirWindow) {
    const TestLayout layout = TestLayout::uniform(30, 10);
    SharedOrder order(layout, DeliveredSamples(30), {.order = {.seed = 5, .window_blocks = 4}, .batch_size = 7});
    std::vector<std::uint64_t> first_window;
    for (std::uint32_t block = 0; block < 30; ++block) {
        order.add(29 - block);
        const std::uint64_t whole = block == 29 ? 30 : (block + 1) / 4 * 4;
        ASSERT_EQ(order.ready_samples(), 10 * whole);
        if (block != 3) continue;
        for (std::uint64_t i = 0; i < 40; ++i) first_window.push_back(order.at(i).sample);
    }
    for (std::uint64_t i = 0; i < 40; ++i) EXPECT_EQ(order.at(i).sample, first_window[i]);
    EXPECT_FALSE(std::ranges::is_sorted(first_window));
    for (std::uint64_t i = 0; i < 300; ++i) EXPECT_EQ((29 - order.at(i).block) / 4, i / 40);
}

TEST(SharedOrder, BlocksOfOneSampleComeInTheOrderOfTheChoices) {
    const TestLayout layout = TestLayout::uniform(100, 1);
    SharedOrder order(layout, DeliveredSamples(100), {.order = {.window_blocks = 16}});
    for (std::uint32_t i = 0; i < 100; ++i) {
        order.add(i * 37 % 100);
        EXPECT_EQ(order.ready_samples(), i + 1);
        EXPECT_EQ(order.at(i).sample, i * 37 % 100);
    }
}

}  // namespace
}  // namespace larder::detail
