// Blocks compressed on admission: jobs get the remote's bytes, more blocks fit, and incompressible blocks are stored
// raw.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/device.h"
#include "cache/shard/compressor.h"
#include "tests/unit/cache/shard/shard_fixture.h"

namespace larder::cache {
namespace {

using protocol::BlockSource;
using test::RingClient;
using test::ShardWorld;

constexpr Compression kZstd{CompressionKind::zstd, 3};
constexpr Compression kAuto{CompressionKind::automatic, 1};

Quota quota(bool on_disk, std::uint64_t bytes) {
    return on_disk ? Quota{.memory_bytes = 0, .disk_bytes = bytes} : Quota{.memory_bytes = bytes, .disk_bytes = 0};
}

class CompressionTest : public ::testing::TestWithParam<bool> {
protected:
    static bool on_disk() { return GetParam(); }
    std::shared_ptr<ScanProgress> scan(ShardWorld& world, ScanKind kind) {
        auto progress = std::make_shared<ScanProgress>();
        EXPECT_TRUE(world.shard->start_scan(test::kDatasetId, kind, std::make_shared<TokenBucket>(), progress));
        for (int i = 0; i < 20'000 && !progress->finished; ++i) world.turns(1);
        EXPECT_TRUE(progress->finished);
        return progress;
    }
};

TEST_P(CompressionTest, CompressedBlocksAreServedUnchanged) {
    ShardWorld world({.block_bytes_max = 60'000,
                      .quota = quota(on_disk(), 64 * test::kMiB),
                      .compression = kZstd,
                      .compressible = true});
    RingClient& client = world.attach();
    EXPECT_EQ(world.read_epoch(client, 1), 0u);
    EXPECT_EQ(world.read_epoch(client, 2), world.content.size()) << "everything is cached";
    const DatasetStatistics statistics = world.dataset();
    EXPECT_EQ(statistics.usage.blocks, world.content.size());
    EXPECT_EQ(statistics.usage.payload_bytes, world.total_bytes) << "counted uncompressed";
    EXPECT_LT(statistics.usage.memory_bytes + statistics.usage.disk_bytes, world.total_bytes * 3 / 4);
    EXPECT_LT(statistics.stored_ratio, 0.75);
    EXPECT_EQ(world.job("job").effective_cache_bytes, 0u) << "all blocks are read";
    world.read_epoch(client, 3);
    EXPECT_EQ(world.job("job").unread_bytes, 0u);
}

TEST_P(CompressionTest, QuotaHoldsMoreBlocksWhenCompressed) {
    const auto cached = [&](Compression compression) {
        ShardWorld world({.blocks = 200,
                          .block_bytes_max = 60'000,
                          .quota = quota(on_disk(), 3 * test::kMiB),
                          .compression = compression,
                          .compressible = true});
        RingClient& client = world.attach();
        for (std::uint32_t epoch = 1; epoch < 4; ++epoch) world.read_epoch(client, epoch);
        const StoreUsage usage = world.dataset().usage;
        EXPECT_LE(usage.memory_bytes + usage.disk_bytes, 3 * test::kMiB);
        return usage.payload_bytes;
    };
    const std::uint64_t plain = cached({});
    EXPECT_GT(cached(kZstd), plain * 5 / 4);
    EXPECT_GT(cached(kAuto), plain * 5 / 4);
}

TEST_P(CompressionTest, IncompressibleBlocksAreStoredUncompressed) {
    ShardWorld world({.block_bytes_max = 60'000, .quota = quota(on_disk(), 64 * test::kMiB), .compression = kZstd});
    RingClient& client = world.attach();
    world.read_epoch(client, 1);
    EXPECT_EQ(world.read_epoch(client, 2), world.content.size());
    EXPECT_EQ(world.dataset().stored_ratio, 1);
    EXPECT_EQ(world.dataset().usage.payload_bytes, world.total_bytes);
}

TEST_P(CompressionTest, AutomaticModeKeepsAFittingDatasetUncompressed) {
    ShardWorld world({.block_bytes_max = 60'000,
                      .quota = quota(on_disk(), 64 * test::kMiB),
                      .compression = kAuto,
                      .compressible = true});
    RingClient& client = world.attach();
    world.read_epoch(client, 1);
    EXPECT_GE(world.dataset().usage.memory_bytes + world.dataset().usage.disk_bytes, world.total_bytes);
}

TEST_P(CompressionTest, VerifyAcceptsCompressedBlocks) {
    ShardWorld world({.block_bytes_max = 60'000,
                      .quota = quota(on_disk(), 64 * test::kMiB),
                      .checksums = true,
                      .compression = kZstd,
                      .compressible = true});
    RingClient& client = world.attach();
    world.read_epoch(client, 1);
    for (const ScanKind kind : {ScanKind::verify, ScanKind::verify_remote}) {
        const auto progress = scan(world, kind);
        EXPECT_EQ(progress->blocks_bad, 0u);
        EXPECT_EQ(progress->blocks_failed, 0u);
        EXPECT_EQ(progress->blocks_corrupt, 0u);
    }
    EXPECT_EQ(world.dataset().usage.blocks, world.content.size());
}

TEST_P(CompressionTest, WarmingFillsTheQuotaWithCompressedBlocks) {
    ShardWorld world({.blocks = 200,
                      .block_bytes_max = 60'000,
                      .quota = quota(on_disk(), 3 * test::kMiB),
                      .compression = kZstd,
                      .compressible = true});
    scan(world, ScanKind::warm);
    EXPECT_GT(world.dataset().usage.payload_bytes, 3 * test::kMiB)
        << "more than the quota, because blocks are compressed";
}

TEST_P(CompressionTest, ClientLeavingDuringCompressionIsCleanedUp) {
    ShardWorld world({.block_bytes_max = 60'000,
                      .quota = quota(on_disk(), 64 * test::kMiB),
                      .compression = kZstd,
                      .compressible = true});
    RingClient& client = world.attach();
    for (std::uint32_t block = 0; block < 32; ++block) client.fetch(block, block * 16, block, 1);
    for (int i = 0; i < 3; ++i) world.turns(1);
    world.clients.clear();
    world.turns(200);
    EXPECT_EQ(world.dataset().sessions, 0u);
    RingClient& other = world.attach({.session_id = 2});
    world.read_epoch(other, 1);
}

// A block above the limit is not admitted this time.
TEST_P(CompressionTest, BytesBeingCompressedAreBounded) {
    constexpr std::uint32_t kBlocks = 16;
    constexpr std::uint64_t kCompressingBytesMax = 64 * test::kMiB;
    ShardWorld world({.blocks = kBlocks,
                      .block_bytes_max = 12'000'000,
                      .quota = quota(on_disk(), 1024 * test::kMiB),
                      .compression = kZstd,
                      .compressible = true});
    ASSERT_GT(world.total_bytes, kCompressingBytesMax);
    constexpr std::uint32_t kSlotPages = 3000;
    RingClient& client = world.attach({.slot_bytes = std::uint64_t{kBlocks} * kSlotPages * protocol::kPageBytes});
    for (std::uint32_t block = 0; block < kBlocks; ++block) client.fetch(block, block * kSlotPages, block, 1);
    for (std::uint32_t block = 0; block < kBlocks; ++block) ASSERT_TRUE(world.completion(client));
    world.turns(200);
    std::uint64_t expected_bytes = 0;
    for (const std::string& block : world.content) {
        if (expected_bytes + block.size() <= kCompressingBytesMax) expected_bytes += block.size();
    }
    EXPECT_EQ(world.dataset().usage.payload_bytes, expected_bytes);
}

INSTANTIATE_TEST_SUITE_P(Tiers, CompressionTest, ::testing::Bool(),
                         [](const auto& tier) { return tier.param ? "disk" : "memory"; });

// Runs the compressor's own thread with a real device.
TEST(Compressor, FinishedWorkWakesTheDevice) {
    const SteadyClock clock;
    auto made = make_device(DeviceKind::automatic, clock);
    ASSERT_TRUE(made);
    Compressor compressor(*made->device, true);
    struct Work : CompressWork {
        bool finished = false;
    };
    std::vector<Work> works(20);
    const std::string text(100'000, 'x');
    for (Work& work : works) {
        work.raw = std::as_bytes(std::span(text));
        work.done = [](CompressWork& done) noexcept { static_cast<Work&>(done).finished = true; };
        compressor.start(work);
    }
    EXPECT_EQ(compressor.bytes_in_flight(), 20 * text.size());
    while (compressor.bytes_in_flight() > 0) {
        made->device->wait(clock.now_ns() + 10'000'000'000);
        compressor.collect();
    }
    for (Work& work : works) {
        EXPECT_TRUE(work.finished);
        EXPECT_GT(work.stored_bytes, 0u);
        EXPECT_LT(work.stored_bytes, 1000u);
    }
    compressor.stop();
    made->device->stop();
}

}  // namespace
}  // namespace larder::cache
