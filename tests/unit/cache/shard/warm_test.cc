// Warming a dataset: which blocks are promised and cached, and why the rest are not.

#include <gtest/gtest.h>

#include "tests/unit/cache/shard/shard_fixture.h"

namespace larder::cache {

using test::RingClient;
using test::ShardWorld;
namespace {

class WarmTest : public testing::Test {
protected:
    // Runs a warm-up to its end.
    std::shared_ptr<ScanProgress> warm(ShardWorld& world) {
        auto progress = std::make_shared<ScanProgress>();
        EXPECT_TRUE(
            world.shard->start_scan(test::kDatasetId, ScanKind::warm, std::make_shared<TokenBucket>(), progress));
        for (int i = 0; i < 20'000 && !progress->finished; ++i) world.turns(1);
        EXPECT_TRUE(progress->finished && progress->planned && progress->outcome.counted);
        return progress;
    }

    static std::uint64_t blocks_accounted_for(const WarmOutcome& outcome) {
        return outcome.cached_blocks + outcome.peer_blocks + outcome.quota_blocks + outcome.disk_full_blocks +
               outcome.disk_failed_blocks + outcome.failed_blocks + outcome.not_asked_blocks + outcome.busy_blocks;
    }
};

TEST_F(WarmTest, CachesEveryPromisedBlockWhenTheQuotaFitsAll) {
    for (const Quota& quota : {test::kMemory, test::kDisk}) {
        ShardWorld world({.blocks = 300, .quota = quota});
        RingClient& client = world.attach();
        for (std::uint32_t block = 0; block < 10; ++block) world.read(client, block);
        world.turns(20);
        const auto progress = warm(world);
        EXPECT_EQ(progress->plan.blocks, 300u);
        EXPECT_EQ(progress->plan.bytes, world.total_bytes);
        EXPECT_EQ(progress->plan.cached_blocks, 10u);
        EXPECT_EQ(progress->plan.promised_blocks, 290u);
        EXPECT_EQ(progress->blocks_total, 290u);
        EXPECT_EQ(progress->blocks_done, 290u);
        EXPECT_EQ(progress->outcome.cached_blocks, 300u);
        EXPECT_EQ(progress->outcome.cached_bytes, world.total_bytes);
    }
}

TEST_F(WarmTest, CachesAtLeastThePromisedBlocksUnderASmallQuota) {
    for (const Quota& quota : {Quota{.memory_bytes = 2'000'000}, Quota{.disk_bytes = 2'000'000},
                               Quota{.memory_bytes = 1'000'000, .disk_bytes = 1'000'000}, Quota{}}) {
        ShardWorld world({.blocks = 600, .quota = quota});
        const auto progress = warm(world);
        EXPECT_LT(progress->plan.promised_blocks, 260u);
        EXPECT_GE(progress->plan.promised_blocks, quota == Quota{} ? 0u : 140u);
        EXPECT_GE(progress->outcome.cached_blocks, progress->plan.promised_blocks);
        EXPECT_EQ(progress->outcome.quota_blocks, 600 - progress->outcome.cached_blocks);
    }
}

TEST_F(WarmTest, FullDiskEndsTheWarmUpAndExplainsMissingBlocks) {
    ShardWorld world({.blocks = 600, .block_bytes_max = 100'000, .quota = test::kDisk});
    // Room for one segment of 16 MiB.
    world.disk.set_bytes_max(world.disk.bytes_used() + 20 * test::kMiB);
    const auto progress = warm(world);
    const WarmOutcome& outcome = progress->outcome;
    EXPECT_EQ(progress->plan.promised_blocks, 600u);
    EXPECT_EQ(blocks_accounted_for(outcome), 600u);
    EXPECT_EQ(outcome.disk_full_blocks, 600 - outcome.cached_blocks);
    EXPECT_GT(outcome.disk_full_blocks, 0u);
    EXPECT_FALSE(outcome.disk_problem.empty());
    EXPECT_LT(progress->bytes_done, world.total_bytes * 3 / 4) << "blocks that cannot be cached are not read";
}

TEST_F(WarmTest, NextWarmUpRetriesAFullDiskAndCachesTheRest) {
    ShardWorld world({.blocks = 600, .block_bytes_max = 100'000, .quota = test::kDisk});
    const std::uint64_t used_bytes = world.disk.bytes_used();
    world.disk.set_bytes_max(used_bytes + 20 * test::kMiB);
    EXPECT_GT(warm(world)->outcome.disk_full_blocks, 0u);
    EXPECT_GT(warm(world)->outcome.disk_full_blocks, 0u);
    world.disk.set_bytes_max(used_bytes + 200 * test::kMiB);
    const auto progress = warm(world);
    EXPECT_EQ(progress->outcome.cached_blocks, 600u);
    EXPECT_EQ(progress->outcome.disk_problem, "");
}

TEST_F(WarmTest, FillsTheRoomThatCompressionFrees) {
    // Half of the blocks compress well: the quota holds all blocks compressed, but only four of five raw.
    ShardWorld world({.blocks = 600,
                      .quota = {.memory_bytes = 4'000'000},
                      .compression = {CompressionKind::zstd, 3},
                      .compressible = true});
    ASSERT_GT(world.total_bytes, 4'700'000u);
    EXPECT_EQ(warm(world)->outcome.cached_blocks, 600u);
}

TEST_F(WarmTest, HitsAndMissesOfADatasetCountOnlyReadsOfJobs) {
    ShardWorld world({.blocks = 100, .quota = test::kDisk});
    EXPECT_EQ(warm(world)->outcome.cached_blocks, 100u);
    auto verified = std::make_shared<ScanProgress>();
    ASSERT_TRUE(world.shard->start_scan(test::kDatasetId, ScanKind::verify, std::make_shared<TokenBucket>(), verified));
    for (int i = 0; i < 20'000 && !verified->finished; ++i) world.turns(1);
    EXPECT_EQ(verified->blocks_done, 100u);
    const BlockCounters after_scans = world.shard->statistics().datasets.at(0).counters;
    EXPECT_EQ(after_scans.misses, 0u);
    EXPECT_EQ(after_scans.disk_hits, 0u);
    EXPECT_EQ(after_scans.remote_read_bytes, world.total_bytes) << "what the remote was asked for counts";
    RingClient& client = world.attach();
    world.read(client, 7);
    world.turns(20);
    EXPECT_EQ(world.shard->statistics().datasets.at(0).counters.disk_hits, 1u);
}

// An allocator lowers a quota as it learns how much blocks take, and raises the quota again.
TEST_F(WarmTest, CachesTheRestWhenItsQuotaGrowsAgain) {
    constexpr Quota kLow{.memory_bytes = 1'000'000};
    ShardWorld world({.blocks = 300, .quota = test::kMemory});
    auto progress = std::make_shared<ScanProgress>();
    ASSERT_TRUE(world.shard->start_scan(test::kDatasetId, ScanKind::warm, std::make_shared<TokenBucket>(), progress));
    const auto cached = [&] { return world.shard->statistics().datasets.at(0).usage.blocks; };
    while (cached() < 10) world.turns(1);
    world.shard->set_quota(test::kDatasetId, kLow);
    world.turns(1);
    ASSERT_FALSE(progress->finished) << "blocks are being read, and the others were passed over";
    world.shard->set_quota(test::kDatasetId, test::kMemory);
    for (int i = 0; i < 20'000 && !progress->finished; ++i) world.turns(1);
    EXPECT_EQ(progress->outcome.cached_blocks, 300u);
    EXPECT_EQ(progress->outcome.quota_memory_bytes, test::kMemory.memory_bytes);
}

TEST_F(WarmTest, OutcomeNamesTheQuotaAtTheEnd) {
    constexpr Quota kLow{.memory_bytes = 1'000'000};
    ShardWorld world({.blocks = 300, .quota = test::kMemory});
    auto progress = std::make_shared<ScanProgress>();
    ASSERT_TRUE(world.shard->start_scan(test::kDatasetId, ScanKind::warm, std::make_shared<TokenBucket>(), progress));
    while (!progress->planned) world.turns(1);
    world.shard->set_quota(test::kDatasetId, kLow);
    for (int i = 0; i < 20'000 && !progress->finished; ++i) world.turns(1);
    EXPECT_GT(progress->outcome.quota_blocks, 0u);
    EXPECT_EQ(progress->plan.quota_memory_bytes, test::kMemory.memory_bytes);
    EXPECT_EQ(progress->outcome.quota_memory_bytes, kLow.memory_bytes);
}

TEST_F(WarmTest, FailedBlockIsReportedWithItsCause) {
    ShardWorld world({.blocks = 100, .quota = test::kMemory});
    world.disk.unlink(world.path(9));
    const auto progress = warm(world);
    EXPECT_EQ(progress->outcome.cached_blocks, 99u);
    EXPECT_EQ(progress->outcome.failed_blocks, 1u);
    ASSERT_EQ(progress->found.size(), 1u);
    EXPECT_EQ(progress->found[0].object, ShardWorld::object_name(9));
    EXPECT_EQ(progress->found[0].why, "it is gone from the remote");
    EXPECT_LT(progress->bytes_done, world.total_bytes) << "the failed block was not read";
}

// The remote is not asked again after 32 failures in a row.
TEST_F(WarmTest, ObjectThatIsGoneCountsForNoRowOfFailures) {
    ShardWorld world({.blocks = 200, .quota = test::kMemory});
    world.disk.unlink(world.path(0));
    for (std::uint32_t block = 1; block < 32; ++block) {
        world.device->inject({.action = test::FakeAction::read, .path_part = world.path(block), .times = 1000});
    }
    const auto progress = warm(world);
    EXPECT_EQ(progress->outcome.failed_blocks, 32u);
    EXPECT_EQ(progress->outcome.not_asked_blocks, 0u);
    EXPECT_EQ(progress->outcome.cached_blocks, 168u);
}

TEST_F(WarmTest, RemoteThatFailsTooOftenInARowIsAskedNoMore) {
    ShardWorld world({.blocks = 200, .quota = test::kMemory});
    world.device->inject({.action = test::FakeAction::read, .path_part = world.root().string(), .times = 100'000});
    const auto progress = warm(world);
    EXPECT_GE(progress->outcome.failed_blocks, 32u);
    EXPECT_EQ(progress->outcome.not_asked_blocks, 200 - progress->outcome.failed_blocks);
    EXPECT_GT(progress->outcome.not_asked_blocks, 0u);
}

TEST_F(WarmTest, BlockRefusedAsBusyIsRetried) {
    // Only a few blocks of this size may be in flight to disk at a time.
    ShardWorld world({.blocks = 12, .block_bytes_max = 12'000'000, .quota = {.disk_bytes = 200 * test::kMiB}});
    const auto progress = warm(world);
    EXPECT_EQ(progress->outcome.cached_blocks, 12u);
}

}  // namespace
}  // namespace larder::cache
