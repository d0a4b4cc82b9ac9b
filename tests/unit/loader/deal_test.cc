#include "loader/deal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "loader/epoch_order.h"
#include "tests/unit/loader/layout.h"

namespace larder::detail {
namespace {

// The epoch positions that a rank delivers, batch by batch.
std::vector<std::vector<std::uint64_t>> deliver(const Dealer& dealer, std::uint32_t rank, std::uint64_t batches_max) {
    std::vector<std::vector<std::uint64_t>> batches;
    for (std::uint64_t i = 0; i < std::min(dealer.rank_batches(rank), batches_max); ++i) {
        const PositionRun run = dealer.batch(rank, i);
        EXPECT_GT(run.count, 0u);
        batches.emplace_back();
        for (std::uint64_t p = 0; p < run.count; ++p) batches.back().push_back(dealer.position(run.begin + p));
    }
    EXPECT_EQ(dealer.batch(rank, dealer.rank_batches(rank)).count, 0u);
    return batches;
}

DealOptions random_options(std::mt19937_64& random, bool contiguous) {
    return {.contiguous = contiguous,
            .drop_last = false,
            .world_size = static_cast<std::uint32_t>(1 + random() % 9),
            .worker_count = static_cast<std::uint32_t>(1 + random() % 4),
            .batch_size = static_cast<std::uint32_t>(1 + random() % 12)};
}

TEST(Deal, EveryPositionIsDealtOnceOverAnyChainOfResumes) {
    std::mt19937_64 random(7);
    for (int round = 0; round < 4000; ++round) {
        const std::uint64_t n = random() % 700;
        const int kind = round % 3;  // 0: interleaved, 1: contiguous, 2: either, at random
        std::vector<int> seen(n);
        std::vector<DealLevel> history;
        const int resumes = static_cast<int>(random() % 5);
        for (int leg = 0; leg <= resumes; ++leg) {
            const DealOptions options = random_options(random, kind == 2 ? random() % 2 : kind == 1);
            const Dealer dealer(n, history, options);
            const bool last = leg == resumes;
            const std::uint64_t taken = last ? ~std::uint64_t{0} : random() % (dealer.rank_batches(0) + 2);
            std::uint64_t fewest_batches = ~std::uint64_t{0};
            std::uint64_t most_batches = 0;
            for (std::uint32_t rank = 0; rank < options.world_size; ++rank) {
                const std::uint64_t batches = dealer.rank_batches(rank);
                fewest_batches = std::min(fewest_batches, batches);
                most_batches = std::max(most_batches, batches);
                for (const auto& batch : deliver(dealer, rank, taken)) {
                    ASSERT_LE(batch.size(), options.batch_size);
                    for (const std::uint64_t position : batch) {
                        ASSERT_LT(position, n);
                        ++seen[position];
                    }
                }
            }
            ASSERT_LE(most_batches - fewest_batches, 1u);
            history = dealer.history_after(taken);
        }
        ASSERT_TRUE(std::ranges::all_of(seen, [](int count) { return count == 1; })) << "round " << round;
        for (std::uint32_t rank = 0; rank < 3; ++rank) {
            EXPECT_EQ(Dealer(n, history, {.contiguous = kind == 1, .world_size = 3}).rank_batches(rank), 0u);
        }
    }
}

TEST(Deal, DropLastGivesEveryRankEquallyManyFullBatches) {
    std::mt19937_64 random(8);
    for (int round = 0; round < 1000; ++round) {
        const std::uint64_t n = random() % 900;
        DealOptions options = random_options(random, round % 2 == 1);
        options.drop_last = true;
        std::vector<int> seen(n);
        std::vector<DealLevel> history;
        const std::uint64_t expected = n / options.batch_size / options.world_size;
        std::uint64_t delivered = 0;
        for (int leg = 0; leg < 3; ++leg) {
            const Dealer dealer(n, history, options);
            const std::uint64_t taken = leg == 2 ? expected : random() % (dealer.rank_batches(0) + 1);
            for (std::uint32_t rank = 0; rank < options.world_size; ++rank) {
                ASSERT_EQ(dealer.rank_batches(rank), expected - delivered);
                for (const auto& batch : deliver(dealer, rank, taken)) {
                    ASSERT_EQ(batch.size(), options.batch_size);
                    for (const std::uint64_t position : batch) ASSERT_EQ(++seen[position], 1);
                }
            }
            delivered += std::min(taken, expected - delivered);
            history = dealer.history_after(taken);
        }
        ASSERT_EQ(static_cast<std::uint64_t>(std::ranges::count(seen, 1)),
                  expected * options.batch_size * options.world_size);
    }
}

TEST(Deal, InterleavedPrefixDoesNotDependOnWorldSize) {
    std::mt19937_64 random(9);
    for (int round = 0; round < 500; ++round) {
        const std::uint64_t n = 1 + random() % 800;
        const DealOptions options = random_options(random, false);
        const Dealer dealer(n, {}, options);
        const std::uint64_t steps = random() % (dealer.rank_batches(0) + 1);
        std::vector<std::uint64_t> positions;
        for (std::uint32_t rank = 0; rank < options.world_size; ++rank) {
            for (const auto& batch : deliver(dealer, rank, steps)) {
                positions.insert(positions.end(), batch.begin(), batch.end());
            }
        }
        std::ranges::sort(positions);
        for (std::uint64_t i = 0; i < positions.size(); ++i) ASSERT_EQ(positions[i], i);
        ASSERT_EQ(positions.size(), std::min(n, steps * options.world_size * options.batch_size));
    }
}

TEST(Deal, ResumingUnchangedGivesTheRemainingBatches) {
    std::mt19937_64 random(10);
    for (int round = 0; round < 600; ++round) {
        const std::uint64_t n = 1 + random() % 800;
        DealOptions options = random_options(random, round % 2 == 1);
        options.drop_last = round % 3 == 0;
        std::vector<DealLevel> history;
        if (round % 5 == 0) history = Dealer(n, {}, random_options(random, true)).history_after(2);
        const Dealer dealer(n, history, options);
        const std::uint64_t stop = random() % (dealer.rank_batches(0) + 1);
        const auto after = dealer.history_after(stop);
        EXPECT_LE(after.size(), history.size() + 1);
        const Dealer resumed(n, after, options);
        for (std::uint32_t rank = 0; rank < options.world_size; ++rank) {
            auto whole = deliver(dealer, rank, ~std::uint64_t{0});
            whole.erase(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(std::min(stop, whole.size())));
            ASSERT_EQ(deliver(resumed, rank, ~std::uint64_t{0}), whole);
        }
    }
}

TEST(Deal, ContiguousWorkersReadOneRangeEach) {
    const DealOptions options{.contiguous = true, .world_size = 4, .worker_count = 3, .batch_size = 5};
    const Dealer dealer(1000, {}, options);
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
        for (std::uint32_t worker = 0; worker < 3; ++worker) {
            for (std::uint64_t i = worker; i + 3 < dealer.rank_batches(rank); i += 3) {
                EXPECT_EQ(dealer.batch(rank, i + 3).begin, dealer.batch(rank, i).begin + 5);
            }
        }
    }
}

TEST(Deal, JobDeliversEverySampleOnceThroughEpochOrder) {
    std::mt19937_64 random(11);
    for (int round = 0; round < 200; ++round) {
        const test::TestLayout layout = test::TestLayout::random(random, 1 + random() % 60, random() % 12);
        const OrderOptions order_options{
            .seed = random(), .epoch = random() % 3, .window_blocks = static_cast<std::uint32_t>(1 + random() % 9)};
        std::vector<int> seen(layout.sample_count());
        std::vector<DealLevel> history;
        for (int leg = 0; leg < 3; ++leg) {
            const DealOptions options = random_options(random, round % 2 == 0);
            const Dealer dealer(layout.sample_count(), history, options);
            const std::uint64_t taken = leg == 2 ? ~std::uint64_t{0} : random() % (dealer.rank_batches(0) + 1);
            for (std::uint32_t rank = 0; rank < options.world_size; ++rank) {
                EpochOrder order(layout, order_options);
                for (const auto& batch : deliver(dealer, rank, taken)) {
                    for (const std::uint64_t position : batch) ++seen[order.at(position).sample];
                }
            }
            history = dealer.history_after(taken);
        }
        ASSERT_TRUE(std::ranges::all_of(seen, [](int count) { return count == 1; }));
    }
}

}  // namespace
}  // namespace larder::detail
