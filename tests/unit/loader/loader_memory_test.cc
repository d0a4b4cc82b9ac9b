// Held batches and slot memory: how many batches a caller may keep within a memory budget.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cache/protocol/record.h"
#include "cache/protocol/wire.h"
#include "loader/slot_budget.h"
#include "tests/support/property_cases.h"
#include "tests/unit/loader/loader_fixture.h"

namespace larder::test {
namespace {

class LoaderMemoryTest : public LoaderTest {
protected:
    // Slot memory that the largest `blocks` blocks occupy.
    std::uint64_t largest_blocks_bytes(std::uint64_t blocks) const {
        std::vector<std::uint64_t> sizes;
        for (std::uint32_t block = 0; block < manifest.block_count(); ++block) {
            sizes.push_back(protocol::record_bytes(manifest.block_bytes(block), protocol::kPageBytes));
        }
        std::ranges::sort(sizes, std::ranges::greater{});
        sizes.resize(std::min<std::size_t>(sizes.size(), blocks));
        return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
    }
    std::uint64_t needed_bytes(const LoaderOptions& settings) const {
        return detail::needed_slot_bytes(manifest, {.batch_size = settings.batch_size,
                                                    .window_blocks = settings.shuffle_window_blocks,
                                                    .interleaved_ranks = settings.world_size * settings.worker_count});
    }
    // Walks an epoch like a `for` loop whose variable holds each batch until the next one arrives.
    void walk_epoch(Loader& loader, std::optional<Batch>& variable) {
        for (bool has_batch_of_epoch = false;; has_batch_of_epoch = true) {
            auto batch = loader.next();
            ASSERT_TRUE(batch.has_value()) << batch.error().message;
            if (has_batch_of_epoch) count(*variable);  // still has its bytes
            if (!*batch) return;
            variable = std::move(*batch);
        }
    }
};

TEST_F(LoaderMemoryTest, EpochsCompleteWhileTheLoopVariableHoldsTheLastBatch) {
    make_raw(200);
    auto settings = options();
    settings.batch_size = 8;
    settings.memory_budget_bytes = needed_bytes(settings);
    Loader loader = open(settings);
    std::optional<Batch> variable;
    for (int epoch = 0; epoch < 8; ++epoch) {
        ASSERT_NO_FATAL_FAILURE(walk_epoch(loader, variable)) << "epoch " << epoch;
        expect_each_sample_once();
    }
}

TEST_F(LoaderMemoryTest, BatchKeptForeverCostsTheMemoryOfOneBatch) {
    make_raw(200);
    auto settings = options();
    settings.batch_size = 8;
    settings.memory_budget_bytes = needed_bytes(settings) + 8 * largest_blocks_bytes(1);
    Loader loader = open(settings);
    const std::optional<Batch> kept = std::move(*loader.next());
    count(*kept);
    const auto seen_in_kept = seen;
    EXPECT_FALSE(take(loader));
    expect_each_sample_once();
    for (int epoch = 1; epoch < 8; ++epoch) {
        EXPECT_FALSE(take(loader));
        expect_each_sample_once();
    }
    count(*kept);
    EXPECT_EQ(seen, seen_in_kept) << "the kept batch still has its bytes";
}

TEST_F(LoaderMemoryTest, HeldBlockIsFetchedAgainInEachEpoch) {
    make_raw(40);
    auto settings = options();
    settings.shuffle = false;
    Loader loader = open(settings);
    const std::optional<Batch> kept = std::move(*loader.next());
    EXPECT_FALSE(take(loader));
    EXPECT_FALSE(take(loader));
    EXPECT_EQ(loader.statistics().memory_blocks + loader.statistics().disk_blocks + loader.statistics().remote_blocks,
              2 * manifest.block_count());
}

// The needed memory assumes an average mix of block sizes. Here all large blocks come first.
TEST_F(LoaderMemoryTest, BatchLargerThanSlotMemoryIsFetchedInParts) {
    make_tree(root() / "a", {.class_count = 1, .files_per_class = 48, .bytes_min = 60'000, .bytes_max = 60'000});
    make_tree(root() / "b", {.class_count = 1, .files_per_class = 600, .bytes_max = 100});
    start(make_manifest(root(), manifest_path()));
    auto settings = options();
    settings.shuffle = false;
    settings.batch_size = 32;
    settings.memory_budget_bytes = needed_bytes(settings);
    ASSERT_LT(settings.memory_budget_bytes, largest_blocks_bytes(32));
    Loader loader = open(settings);
    std::optional<Batch> variable;
    for (int epoch = 0; epoch < 2; ++epoch) {
        ASSERT_NO_FATAL_FAILURE(walk_epoch(loader, variable)) << "epoch " << epoch;
        expect_each_sample_once();
    }
}

// Kept small batches lie in every slab, so no slab has room for the large batch, but the gaps together have.
TEST_F(LoaderMemoryTest, LargeBatchIsSpreadOverGapsBetweenKeptBatches) {
    make_tree(root() / "a", {.class_count = 1, .files_per_class = 96, .bytes_min = 10'000, .bytes_max = 10'000});
    make_tree(root() / "b", {.class_count = 1, .files_per_class = 8, .bytes_min = 100'000, .bytes_max = 100'000});
    make_tree(root() / "c", {.class_count = 1, .files_per_class = 304, .bytes_min = 10'000, .bytes_max = 10'000});
    start(make_manifest(root(), manifest_path()));
    auto settings = options();
    settings.shuffle = false;
    settings.batch_size = 8;
    settings.memory_budget_bytes = needed_bytes(settings);
    Loader loader = open(settings);
    std::vector<Batch> kept;
    for (int i = 0; i < 12; ++i) {
        auto batch = loader.next();
        ASSERT_TRUE(batch.has_value() && *batch) << batch.error().message;
        count(**batch);
        if (i % 3 == 2) kept.push_back(std::move(**batch));
    }
    EXPECT_FALSE(take(loader));
    expect_each_sample_once();
}

// Datasets in which a few blocks are much larger than the others, often several in a row.
class LoaderUnevenTest : public LoaderMemoryTest, public testing::WithParamInterface<bool> {
protected:
    void make_uneven(std::mt19937_64& random) {
        std::filesystem::remove_all(root());
        const auto draw = [&random](std::uint32_t least, std::uint32_t most) {
            return least + static_cast<std::uint32_t>(random() % (most - least + 1));
        };
        const std::size_t large = draw(10'000, 150'000);
        const std::size_t small = draw(1, 5'000);
        if (!GetParam()) {
            make_tree(root() / "a", {.class_count = 1,
                                     .files_per_class = draw(1, 40),
                                     .bytes_min = large / 2,
                                     .bytes_max = large,
                                     .seed = random()});
            make_tree(root() / "b",
                      {.class_count = 1, .files_per_class = draw(20, 400), .bytes_max = small, .seed = random()});
            start(make_manifest(root(), manifest_path()));
            return;
        }
        std::filesystem::create_directories(root());
        for (const std::size_t bytes_max : {large, small, small}) {
            const std::uint64_t seed = random();
            write_tar(root() / (std::to_string(seed) + ".tar"), TarDialect::pax,
                      make_samples(draw(20, 100), bytes_max, seed));
        }
        start(make_manifest(root(), manifest_path(), protocol::Format::webdataset,
                            {.target = protocol::BlockTarget::bytes, .bytes = draw(1'000, 40'000)}));
    }
};

TEST_P(LoaderUnevenTest, SmallestAcceptedBudgetCompletesEveryEpoch) {
    std::mt19937_64 random(GetParam() ? 5 : 3);
    for (std::uint64_t round = 0; round < property_cases(10, 5); ++round) {
        make_uneven(random);
        for (int trial = 0; trial < 12; ++trial) {
            auto settings = options();
            settings.seed = random();
            settings.shuffle = random() % 2 == 0;
            settings.batch_size = 1 + static_cast<std::uint32_t>(random() % (trial % 2 == 0 ? 6 : 60));
            settings.shuffle_window_blocks = 1 + static_cast<std::uint32_t>(random() % 8);
            settings.memory_budget_bytes = needed_bytes(settings);
            SCOPED_TRACE("round " + std::to_string(round) + ", trial " + std::to_string(trial) + ": batch size " +
                         std::to_string(settings.batch_size) + ", window " +
                         std::to_string(settings.shuffle_window_blocks) + ", budget " +
                         std::to_string(settings.memory_budget_bytes));
            Loader loader = open(settings);
            std::optional<Batch> variable;
            for (int epoch = 0; epoch < 3; ++epoch) {
                ASSERT_NO_FATAL_FAILURE(walk_epoch(loader, variable)) << "epoch " << epoch;
                expect_each_sample_once();
            }
            EXPECT_EQ(loader.statistics().disk_blocks, 3 * manifest.block_count());
        }
    }
}
INSTANTIATE_TEST_SUITE_P(Formats, LoaderUnevenTest, testing::Bool(), [](const auto& instance) {
    return instance.param ? "BlocksOfManySamples" : "BlocksOfOneSample";
});

// Holds up to `held_max` batches and releases them in random order.
class HeldBatches {
public:
    HeldBatches(std::uint64_t seed, std::size_t held_max) : random_(seed), held_max_(held_max) {}

    void take(Result<std::optional<Batch>>& batch) {
        if (!*batch || held_max_ == 0) return;
        while (held_.size() >= held_max_) drop_one();
        held_.push_back(std::move(**batch));
        while (!held_.empty() && random_() % 3 == 0) drop_one();
    }
    // Mostly spares the batch held longest.
    void drop_one() {
        const std::size_t i = held_.size() == 1 || random_() % 4 == 0 ? 0 : 1 + random_() % (held_.size() - 1);
        held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    std::uint64_t draw(std::uint64_t end) { return random_() % end; }
    std::vector<Batch>& held() { return held_; }

private:
    std::mt19937_64 random_;
    std::size_t held_max_;
    std::vector<Batch> held_;
};

class LoaderHoldingTest : public LoaderMemoryTest, public testing::WithParamInterface<bool> {};

// Holds batches over several epochs and leaves some epochs early. Block sizes range from a byte to about a tenth of the
// budget. The budget is at most what loader/larder.h promises to be enough.
TEST_P(LoaderHoldingTest, HoldingAsManyBatchesAsTheBudgetAllowsNeverFails) {
    const bool shards = GetParam();
    std::mt19937_64 random(shards ? 11 : 7);
    if (shards) {
        make_shards(12, 30, 4'000, 3);
    } else {
        make_raw(160, 60'000);
    }
    daemon->behaviour.memory_every = 0;
    for (std::uint64_t round = 0; round < property_cases(40); ++round) {
        auto settings = options();
        settings.seed = random();
        settings.shuffle = random() % 4 != 0;
        settings.batch_size = 1 + static_cast<std::uint32_t>(random() % 12);
        settings.shuffle_window_blocks = 1 + static_cast<std::uint32_t>(random() % 8);
        settings.worker_count = 1 + static_cast<std::uint32_t>(random() % 3);
        const std::size_t held_max = random() % 4;
        const std::uint64_t slab_bytes =
            detail::plan_slots(manifest, {.batch_size = settings.batch_size}, std::uint64_t{1} << 40)->slab_bytes;
        const std::uint64_t enough_bytes = shards ? (held_max + 2) * largest_blocks_bytes(settings.batch_size) +
                                                        settings.shuffle_window_blocks * largest_blocks_bytes(1)
                                                  : (held_max + 1) * slab_bytes;
        settings.memory_budget_bytes = std::max(needed_bytes(settings), enough_bytes);
        SCOPED_TRACE("round " + std::to_string(round) + ": batch size " + std::to_string(settings.batch_size) +
                     ", window " + std::to_string(settings.shuffle_window_blocks) + ", workers " +
                     std::to_string(settings.worker_count) + ", held " + std::to_string(held_max) + ", budget " +
                     std::to_string(settings.memory_budget_bytes));
        std::vector<Loader> workers;
        std::vector<HeldBatches> held;
        for (std::uint32_t worker = 0; worker < settings.worker_count; ++worker) {
            settings.worker = worker;
            workers.push_back(open(settings));
            held.emplace_back(random(), held_max);
        }
        for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
            const bool left_early = random() % 4 == 0;
            for (std::uint32_t worker = 0; worker < settings.worker_count; ++worker) {
                ASSERT_TRUE(workers[worker].start_epoch(epoch).has_value());
                for (;;) {
                    auto batch = workers[worker].next();
                    ASSERT_TRUE(batch.has_value()) << batch.error().message;
                    if (!*batch) break;
                    count(**batch);
                    held[worker].take(batch);
                    if (left_early && held[worker].draw(8) == 0) break;
                }
            }
            if (left_early) {
                seen.clear();
            } else {
                expect_each_sample_once();
            }
        }
        for (HeldBatches& kept : held) {
            for (const Batch& batch : kept.held()) count(batch);
        }
        seen.clear();
    }
}
INSTANTIATE_TEST_SUITE_P(Formats, LoaderHoldingTest, testing::Bool(), [](const auto& instance) {
    return instance.param ? "BlocksOfManySamples" : "BlocksOfOneSample";
});

}  // namespace
}  // namespace larder::test
