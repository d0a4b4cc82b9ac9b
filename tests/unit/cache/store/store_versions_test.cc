// How the room of blocks that no dataset version uses any more is reused, and the sizes of segments.

#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/cache/store/store_fixture.h"

namespace larder::cache {
namespace {

using test::kMiB;
using test::StoreFixture;

constexpr std::uint32_t kBytes = kMiB - 64;

std::vector<std::uint64_t> live_blocks(std::uint32_t end, const auto& is_live) {
    std::vector<std::uint64_t> live((end + 63) / 64);
    for (std::uint32_t block_id = 0; block_id < end; ++block_id) {
        if (is_live(block_id)) live[block_id / 64] |= std::uint64_t{1} << (block_id % 64);
    }
    return live;
}

std::uint32_t fill(StoreFixture& f) {
    f.store->set_quota({.memory_bytes = 64 * kMiB, .disk_bytes = 0}, {});
    std::uint32_t blocks = 0;
    while (f.admit_to_memory(blocks, kBytes)) ++blocks;
    return blocks;
}

TEST(StoreVersions, RoomOfDeadBlocksIsReused) {
    StoreFixture f(1024, kBytes);
    const std::uint32_t blocks = fill(f);
    ASSERT_GT(blocks, 32u);
    std::uint64_t forgotten = 0;
    const DatasetStore::DropObserver observer{.forgetting = [&](std::uint32_t block_id, std::uint32_t raw_bytes) {
        EXPECT_LT(block_id, blocks);
        EXPECT_EQ(raw_bytes, kBytes);
        ++forgotten;
    }};
    f.store->drop_dead_blocks(live_blocks(1024, [&](std::uint32_t id) { return id >= blocks; }), observer);
    EXPECT_EQ(forgotten, blocks);
    EXPECT_EQ(f.store->usage().memory_bytes, 0u);
    EXPECT_EQ(f.store->usage().payload_bytes, 0u);
    for (std::uint32_t i = 0; i < blocks; ++i) EXPECT_TRUE(f.admit_to_memory(blocks + i, kBytes));
    f.store->check_invariants();
}

TEST(StoreVersions, SegmentsWithMostlyLiveBlocksAreKept) {
    StoreFixture f(1024, kBytes);
    const std::uint32_t blocks = fill(f);
    const std::uint32_t segments = f.store->usage().memory_segments;
    f.store->drop_dead_blocks(live_blocks(1024, [](std::uint32_t id) { return id % 16 != 0; }), {});
    EXPECT_EQ(f.store->usage().memory_segments, segments);
    EXPECT_FALSE(f.store->find(0));
    EXPECT_TRUE(f.holds(1, kBytes));
    f.store->check_invariants();
    // A third of each segment is dead now. Only as many segments drop as one more block needs.
    f.store->drop_dead_blocks(live_blocks(1024, [](std::uint32_t id) { return id % 3 != 0; }), {});
    EXPECT_EQ(f.store->usage().memory_segments, segments - 1);
    EXPECT_TRUE(f.admit_to_memory(blocks, kBytes));
    f.store->check_invariants();
}

TEST(StoreVersions, BlockIdsOfLaterVersionsCountAsLive) {
    StoreFixture f(1024, kBytes);
    const std::uint32_t blocks = fill(f);
    f.store->drop_dead_blocks(std::vector<std::uint64_t>{}, {});
    EXPECT_EQ(f.store->usage().blocks, blocks);
}

TEST(SegmentSizes, AllocatedBytesExceedTheQuotaByAtMostOneSegment) {
    constexpr std::uint32_t kLarge = 11 * kMiB;
    constexpr std::uint64_t kQuota = 128 * kMiB;
    StoreFixture f(400, kLarge);
    f.store->set_quota({.memory_bytes = 0, .disk_bytes = kQuota}, {});
    // A block of 6 MiB leaves a tail of 5 MiB in every segment of 11 MiB.
    for (std::uint32_t block_id = 0; block_id < 40; ++block_id) f.admit_to_disk(block_id, 6 * kMiB);
    EXPECT_LE(f.store->usage().disk_allocated_bytes, kQuota + 16 * kMiB);
    EXPECT_GT(f.store->usage().disk_bytes, kQuota / 2);
    f.store->check_invariants();
}

TEST(SegmentSizes, QuotaGrowingInSmallStepsMakesFewSegments) {
    StoreFixture f(2000, kMiB / 16);
    std::uint32_t admitted = 0;
    for (std::uint64_t step = 1; step <= 600; ++step) {
        f.store->set_quota({.memory_bytes = step * kMiB / 16, .disk_bytes = 0}, {});
        while (f.admit_to_memory(admitted, kMiB / 16 - 64)) ++admitted;
    }
    EXPECT_EQ(admitted, 600u);
    EXPECT_LE(f.store->usage().memory_segments, 64u);
    f.store->check_invariants();
}

}  // namespace
}  // namespace larder::cache
