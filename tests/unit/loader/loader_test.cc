// The loader with a well-behaved daemon: order, bytes, fields, ranks, resume, budgets.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/units.h"
#include "tests/unit/loader/loader_fixture.h"

namespace larder::test {
namespace {

std::vector<std::uint64_t> indices(const Batch& batch) {
    std::vector<std::uint64_t> all;
    for (const Sample& sample : batch.samples()) all.push_back(sample.index);
    return all;
}

TEST_F(LoaderTest, DeliversEveryFileOncePerEpochInANewOrder) {
    make_raw(200);
    daemon->behaviour.memory_every = 3;
    Loader loader = open(options());
    EXPECT_EQ(loader.sample_count(), 200u);
    EXPECT_EQ(loader.batches_per_epoch(), 13u);
    EXPECT_EQ(loader.class_names().size(), 4u);
    std::vector<std::vector<std::uint64_t>> first_batches;
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
        EXPECT_EQ(loader.epoch(), epoch);
        auto batch = loader.next();
        ASSERT_TRUE(batch.has_value() && *batch);
        first_batches.push_back(indices(**batch));
        count(**batch);
        EXPECT_FALSE(take(loader));
        expect_each_sample_once();
    }
    EXPECT_NE(first_batches[0], first_batches[1]);
    EXPECT_NE(first_batches[1], first_batches[2]);
    const LoaderStatistics statistics = loader.statistics();
    EXPECT_EQ(statistics.samples, 600u);
    EXPECT_EQ(statistics.bytes, 3 * manifest.total_bytes());
    EXPECT_EQ(statistics.memory_blocks, 3 * 67u);
    EXPECT_EQ(statistics.disk_blocks, 3 * 133u);
    EXPECT_EQ(statistics.reconnects, 0u);
}

std::uint64_t blocks(const LoaderStatistics& statistics) {
    return statistics.memory_blocks + statistics.peer_blocks + statistics.disk_blocks + statistics.remote_blocks;
}

TEST_F(LoaderTest, BlocksHeldSinceTheLastEpochCountOncePerEpoch) {
    make_raw(200);
    Loader loader = open(options());
    std::optional<Batch> held;
    for (std::uint64_t epochs = 1; epochs <= 3; ++epochs) {
        for (auto batch = loader.next(); batch && *batch; batch = loader.next()) held = std::move(**batch);
        EXPECT_EQ(blocks(loader.statistics()), epochs * 200);
    }
    EXPECT_EQ(held->size(), 200 % 16u);
}

TEST_F(LoaderTest, MultiSampleBlocksCountOncePerEpochWhileBatchesAreHeld) {
    make_shards(4, 150, 32'000);
    Loader loader = open(options());
    std::vector<Batch> held;
    for (std::uint64_t epochs = 1; epochs <= 3; ++epochs) {
        std::vector<Batch> last;
        for (auto batch = loader.next(); batch && *batch; batch = loader.next()) {
            last.push_back(std::move(**batch));
            if (last.size() > 3) last.erase(last.begin());
        }
        held = std::move(last);
        EXPECT_EQ(blocks(loader.statistics()), epochs * manifest.block_count());
    }
}

TEST_F(LoaderTest, PrefetchedBlocksThatAreDroppedAreNotCounted) {
    make_raw(200);
    Loader loader = open(options());
    EXPECT_TRUE(take(loader, 2));
    EXPECT_EQ(blocks(loader.statistics()), 32u);
    ASSERT_TRUE(loader.start_epoch(1).has_value());
    EXPECT_FALSE(take(loader));
    EXPECT_EQ(blocks(loader.statistics()), 32u + 200u);
}

TEST_F(LoaderTest, BlocksCountOnceWhenHeldBatchesPreventPrefetch) {
    make_raw(200);
    auto settings = options();
    settings.batch_size = 8;
    settings.memory_budget_bytes = 700'000;
    Loader loader = open(settings);
    std::optional<Batch> held;
    for (std::uint64_t epochs = 1; epochs <= 3; ++epochs) {
        for (auto batch = loader.next(); batch && *batch; batch = loader.next()) held = std::move(**batch);
        EXPECT_EQ(blocks(loader.statistics()), epochs * 200);
    }
}

TEST_F(LoaderTest, DatasetCountsAStillHeldBlockAsAMemoryBlock) {
    make_raw(40);
    auto dataset = Dataset::open(options());
    ASSERT_TRUE(dataset.has_value());
    const std::uint64_t wanted_samples[] = {7, 7, 9};
    auto held = dataset->fetch(wanted_samples);
    ASSERT_TRUE(held.has_value());
    EXPECT_EQ(blocks(dataset->statistics()), 2u);
    EXPECT_EQ(dataset->statistics().memory_blocks, 0u);
    ASSERT_TRUE(dataset->fetch(wanted_samples).has_value());
    EXPECT_EQ(blocks(dataset->statistics()), 4u);
    EXPECT_EQ(dataset->statistics().memory_blocks, 2u);
}

TEST_F(LoaderTest, SamplesCarryKeyLabelAndField) {
    make_raw(40);
    auto settings = options();
    settings.shuffle = false;
    Loader loader = open(settings);
    auto batch = loader.next();
    ASSERT_TRUE(batch.has_value() && *batch);
    const Sample& sample = (**batch)[12];
    EXPECT_EQ(sample.index, 12u);
    EXPECT_EQ(sample.key, "class_001/file_00002.bin");
    EXPECT_EQ(sample.label, 1u);
    ASSERT_EQ(sample.fields.size(), 1u);
    EXPECT_EQ(sample.fields[0].name, "bin");
}

TEST_F(LoaderTest, ShardSamplesHaveFieldsAndBlocksAreFetchedOnce) {
    make_shards(4, 150, 32'000);
    ASSERT_GT(manifest.block_count(), 40u);
    auto settings = options();
    settings.shuffle_window_blocks = 5;
    Loader loader = open(settings);
    auto first = loader.next();
    ASSERT_TRUE(first.has_value() && *first);
    for (const Sample& sample : (*first)->samples()) {
        ASSERT_EQ(sample.fields.size(), 2u);
        EXPECT_EQ(sample.fields[0].name, "bin");
        EXPECT_EQ(sample.fields[1].name, "cls");
        EXPECT_NE(sample.key.find('-'), std::string_view::npos);
    }
    count(**first);
    first = std::optional<Batch>{};
    EXPECT_FALSE(take(loader));
    expect_each_sample_once();
    daemon->stop();
    for (const auto& [block, fetches] : daemon->fetches_by_block) EXPECT_EQ(fetches, 1u) << "block " << block;
}

TEST_F(LoaderTest, RanksAndWorkersShareAnEpoch) {
    make_shards(3, 100, 20'000);
    for (const Deal deal : {Deal::interleaved, Deal::contiguous}) {
        for (std::uint32_t rank = 0; rank < 3; ++rank) {
            std::uint64_t batches = 0;
            std::uint64_t promised = 0;
            for (std::uint32_t worker = 0; worker < 2; ++worker) {
                auto settings = options();
                settings.deal = deal;
                settings.world_size = 3;
                settings.rank = rank;
                settings.worker_count = 2;
                settings.worker = worker;
                Loader loader = open(settings);
                promised = loader.batches_per_epoch();
                for (auto batch = loader.next(); batch && *batch; batch = loader.next()) {
                    count(**batch);
                    ++batches;
                }
            }
            EXPECT_EQ(batches, promised);
        }
        expect_each_sample_once();
    }
}

TEST_F(LoaderTest, ResumesWithAnotherWorldSize) {
    make_raw(200, 3000);
    auto settings = options();
    settings.batch_size = 5;
    settings.world_size = 2;
    std::vector<std::byte> state;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
        settings.rank = rank;
        Loader loader = open(settings);
        EXPECT_TRUE(take(loader, 7));
        state = loader.state();
        EXPECT_EQ(state, loader.state_after(7));
    }
    settings.world_size = 3;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
        settings.rank = rank;
        Loader loader = open(settings);
        ASSERT_TRUE(loader.restore(state).has_value());
        EXPECT_FALSE(take(loader));
        EXPECT_EQ(loader.epoch(), 1u);
    }
    expect_each_sample_once();
}

TEST_F(LoaderTest, ResumingUnchangedGivesTheSameBatches) {
    make_shards(3, 80, 20'000);
    Loader whole = open(options());
    Loader stopped = open(options());
    EXPECT_TRUE(take(whole, 6));
    EXPECT_TRUE(take(stopped, 6));
    Loader resumed = open(options());
    ASSERT_TRUE(resumed.restore(stopped.state()).has_value());
    for (;;) {
        auto expected = whole.next();
        auto batch = resumed.next();
        ASSERT_TRUE(expected.has_value() && batch.has_value());
        ASSERT_EQ(expected->has_value(), batch->has_value());
        if (!*expected) break;
        EXPECT_EQ(indices(**expected), indices(**batch));
    }
}

TEST_F(LoaderTest, StateOfAnotherOrderIsRefused) {
    make_raw(40);
    Loader loader = open(options());
    EXPECT_TRUE(take(loader, 1));
    auto settings = options();
    settings.seed = 8;
    Loader other = open(settings);
    auto restored = other.restore(loader.state());
    ASSERT_FALSE(restored.has_value());
    EXPECT_NE(restored.error().message.find("seed 7"), std::string::npos);
    EXPECT_FALSE(take(other));
}

TEST_F(LoaderTest, TooSmallBudgetIsAnErrorAtOpen) {
    make_raw(200);
    auto settings = options();
    settings.memory_budget_bytes = 100'000;
    auto loader = Loader::open(settings);
    ASSERT_FALSE(loader.has_value());
    EXPECT_EQ(loader.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(loader.error().message.find("100.00 kB"), std::string::npos) << loader.error().message;
    EXPECT_NE(loader.error().message.find("raise the memory budget"), std::string::npos);
}

// The size that follows `before` in the text: a number, a space and a unit.
std::string size_after(const std::string& text, const std::string& before) {
    const std::size_t begin = text.find(before) + before.size();
    return text.substr(begin, text.find(' ', text.find(' ', begin) + 1) - begin);
}

TEST_F(LoaderTest, BudgetNamedByTheErrorIsEnoughToOpen) {
    make_raw(200);
    for (std::uint32_t batch_size = 1; batch_size < 40; batch_size += 3) {
        for (const std::uint64_t too_small : {50'000, 51'200}) {
            auto settings = options();
            settings.batch_size = batch_size;
            settings.memory_budget_bytes = too_small;
            const auto refused = Loader::open(settings);
            ASSERT_FALSE(refused.has_value());
            const std::string named = size_after(refused.error().message, " blocks need ");
            const auto enough = parse_bytes(named);
            ASSERT_TRUE(enough.has_value()) << named;
            settings.memory_budget_bytes = *enough;
            EXPECT_TRUE(Loader::open(settings).has_value()) << named << " for batches of " << batch_size;
        }
    }
}

TEST_F(LoaderTest, HeldBatchesThatLeaveNoRoomFailWithoutLosingSamples) {
    make_raw(200);
    auto settings = options();
    settings.batch_size = 8;
    settings.memory_budget_bytes = 700'000;
    Loader loader = open(settings);
    std::vector<Batch> held;
    Result<std::optional<Batch>> batch = std::optional<Batch>{};
    for (batch = loader.next(); batch && *batch; batch = loader.next()) held.push_back(std::move(**batch));
    ASSERT_FALSE(batch.has_value()) << "the whole dataset fits the budget";
    EXPECT_EQ(batch.error().code, ErrorCode::no_space);
    EXPECT_NE(batch.error().message.find("raise the memory budget"), std::string::npos);
    EXPECT_FALSE(loader.next().has_value());
    for (const Batch& kept : held) count(kept);
    held.clear();
    EXPECT_FALSE(take(loader));
    expect_each_sample_once();
}

TEST_F(LoaderTest, TightBudgetStillDeliversEverySample) {
    make_shards(4, 150, 32'000);
    auto settings = options();
    settings.batch_size = 4;
    settings.shuffle_window_blocks = 3;
    settings.memory_budget_bytes = 600'000;
    Loader loader = open(settings);
    for (int epoch = 0; epoch < 2; ++epoch) {
        EXPECT_FALSE(take(loader));
        expect_each_sample_once();
    }
    EXPECT_LE(daemon->slot_bytes_attached, 600'000u);
}

TEST_F(LoaderTest, BatchOutlivesItsLoader) {
    make_raw(40);
    daemon->behaviour.memory_every = 2;
    std::optional<Batch> batch;
    {
        Loader loader = open(options());
        batch = std::move(*loader.next());
    }
    daemon->stop();
    count(*batch);
    EXPECT_EQ(seen.size(), 16u);
}

TEST_F(LoaderTest, InvalidOptionsAreNamed) {
    make_raw(40);
    const auto message = [&](auto change) {
        auto settings = options();
        change(settings);
        auto loader = Loader::open(settings);
        return loader ? std::string() : loader.error().message;
    };
    EXPECT_NE(message([](LoaderOptions& o) { o.batch_size = 0; }).find("batch_size"), std::string::npos);
    EXPECT_NE(message([](LoaderOptions& o) { o.rank = 2; }).find("rank 2"), std::string::npos);
    EXPECT_NE(message([](LoaderOptions& o) { o.worker = 1; }).find("worker 1"), std::string::npos);
    EXPECT_NE(message([](LoaderOptions& o) { o.shuffle_window_blocks = 0; }).find("window"), std::string::npos);
    EXPECT_NE(message([](LoaderOptions& o) { o.dataset = "nothing"; }).find("unknown"), std::string::npos);
    EXPECT_NE(message([](LoaderOptions& o) { o.dataset = ""; }).find("dataset name"), std::string::npos);
}

TEST_F(LoaderTest, DropLastAndStartEpochDeliverFullBatchesOnly) {
    make_raw(40);
    auto settings = options();
    settings.drop_last = true;
    Loader loader = open(settings);
    EXPECT_EQ(loader.batches_per_epoch(), 2u);
    EXPECT_FALSE(take(loader));
    EXPECT_EQ(seen.size(), 32u);
    seen.clear();
    EXPECT_TRUE(take(loader, 1));
    ASSERT_TRUE(loader.start_epoch(5).has_value());
    EXPECT_EQ(loader.epoch(), 5u);
    seen.clear();
    EXPECT_FALSE(take(loader));
    EXPECT_EQ(seen.size(), 32u);
    EXPECT_EQ(loader.epoch(), 6u);
}

TEST_F(LoaderTest, JobComesFromTheEnvironmentUnlessTheOptionsNameIt) {
    make_raw(32);
    LoaderOptions settings = options();
    ::unsetenv("LARDER_JOB");
    static_cast<void>(open(settings));
    ::setenv("LARDER_JOB", "submitted", 1);
    static_cast<void>(open(settings));
    settings.job = "named";
    static_cast<void>(open(settings));
    ::unsetenv("LARDER_JOB");
    daemon->stop();
    EXPECT_EQ(daemon->jobs, (std::vector<std::string>{"default", "submitted", "named"}));
}

TEST_F(LoaderTest, DatasetReadsAnySamplesByIndex) {
    make_raw(200);
    daemon->behaviour.memory_every = 2;
    ConnectOptions settings = options();
    auto dataset = Dataset::open(settings);
    ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
    EXPECT_EQ(dataset->sample_count(), 200u);
    EXPECT_EQ(dataset->total_bytes(), manifest.total_bytes());
    for (std::uint64_t round = 0; round < 20; ++round) {
        std::vector<std::uint64_t> wanted;
        for (std::uint64_t i = 0; i < 30; ++i) wanted.push_back(random_below(200, round * 100 + i));
        wanted.push_back(wanted.front());
        auto batch = dataset->fetch(wanted);
        ASSERT_TRUE(batch.has_value()) << batch.error().message;
        EXPECT_EQ(indices(*batch), wanted);
        count(*batch);
    }
    const std::vector<std::uint64_t> beyond{200};
    EXPECT_EQ(dataset->fetch(beyond).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(dataset->fetch({})->size(), 0u);
}

}  // namespace
}  // namespace larder::test
