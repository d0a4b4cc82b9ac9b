// Shrinking quotas, segments dropped while in use, and removed datasets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/cache/store/store_fixture.h"

namespace larder::cache {
namespace {

using test::FakeDevice;
using test::FakeDisk;
using test::kMiB;
using test::StoreFixture;
using test::TestWrite;

// A store with one tier filled to a quota of 64 MiB by blocks 0 to `blocks` - 1. A block with its header takes 1 MiB.
struct FullStore : StoreFixture {
    explicit FullStore(Tier tier) : StoreFixture(1000, kBytes) {
        const Quota quota{.memory_bytes = tier == Tier::memory ? 64 * kMiB : 0,
                          .disk_bytes = tier == Tier::disk ? 64 * kMiB : 0};
        store->set_quota(quota, {});
        while (tier == Tier::memory ? admit_to_memory(blocks, kBytes) : admit_to_disk(blocks, kBytes) == 0) blocks++;
    }
    static constexpr std::uint32_t kBytes = kMiB - 64;
    std::uint32_t blocks = 0;
};

TEST(StoreQuota, DropsSegmentsWithFewestUnreadBlocksThenNewest) {
    FullStore f(Tier::memory);
    ASSERT_EQ(f.store->usage().memory_segments, 4u);
    // The segment with nothing unread drops first. The newest of equal segments drops.
    std::vector<std::uint32_t> dropped;
    const std::uint32_t read_segment = f.store->find(20)->segment->id();
    const DatasetStore::DropObserver observer{
        .unread_blocks = [&](const Segment& segment) -> std::uint64_t { return segment.id() == read_segment ? 0 : 5; },
        .dropping =
            [&](const Segment& segment) {
                dropped.push_back(segment.id());
                for (const std::uint32_t block_id : segment.block_ids()) EXPECT_TRUE(f.store->find(block_id));
            }};
    f.store->set_quota({.memory_bytes = 40 * kMiB, .disk_bytes = 0}, observer);
    EXPECT_THAT(dropped, testing::ElementsAre(read_segment, f.store->find(0)->segment->id() + 3));
    EXPECT_LE(f.store->usage().memory_bytes, 40 * kMiB);
    f.store->check_invariants();
    EXPECT_FALSE(f.store->find(20));
    EXPECT_TRUE(f.holds(0, FullStore::kBytes));
    // The freed room admits blocks again.
    EXPECT_TRUE(f.admit_to_memory(20, FullStore::kBytes));
    f.store->check_invariants();
}

TEST(StoreQuota, GrowsAtOnce) {
    FullStore f(Tier::memory);
    const std::uint64_t blocks = f.store->usage().blocks;
    f.store->set_quota({.memory_bytes = 64 * kMiB + 10 * kMiB, .disk_bytes = 0}, {});
    for (std::uint32_t i = 0; i < 10; i++) EXPECT_TRUE(f.admit_to_memory(f.blocks + i, FullStore::kBytes));
    EXPECT_EQ(f.store->usage().blocks, blocks + 10);
    f.store->check_invariants();
}

TEST(StoreQuota, KeepsADroppedSegmentWhileItIsReferenced) {
    FullStore f(Tier::disk);
    const BlockLocation location = *f.store->find(3);
    f.store->add_reference(*location.segment);
    f.store->set_quota({}, {});
    f.run();
    EXPECT_TRUE(location.segment->dropped());
    EXPECT_FALSE(f.store->find(3));
    EXPECT_EQ(f.store->usage().disk_bytes, 0u);
    EXPECT_EQ(f.store->usage().draining_segments, 1u);
    EXPECT_TRUE(f.disk.paths().empty());
    EXPECT_EQ(test::stored_payload(location), test::payload_of(3, FullStore::kBytes));
    f.store->drop_reference(*location.segment);
    EXPECT_EQ(f.store->usage().draining_segments, 0u);
    EXPECT_EQ(f.device.open_files(), 0u);
    f.store->check_invariants();
}

TEST(StoreQuota, HandsDroppedMemoryToTheUnmapCallback) {
    FakeDisk disk;
    ManualClock clock;
    FakeDevice device(disk, clock);
    std::vector<std::shared_ptr<const Mapping>> handed_over;
    StoreOptions options;
    options.block_id_end = 10;
    options.block_bytes_max = 1000;
    options.unmap_on_another_thread = [&](std::shared_ptr<const Mapping> memory) {
        handed_over.push_back(std::move(memory));
    };
    DatasetStore store(options, device, clock, nullptr);
    store.set_quota({.memory_bytes = kMiB, .disk_bytes = 0}, {});
    const auto room = store.reserve(Tier::memory, 1, 1000);
    const Segment& segment = *room->segment;
    store.commit(*room, 1);
    store.add_reference(segment);
    store.set_quota({}, {});
    EXPECT_TRUE(handed_over.empty());
    store.drop_reference(segment);
    ASSERT_EQ(handed_over.size(), 1u);
    EXPECT_EQ(handed_over[0]->size(), kMiB);
}

TEST(StoreQuota, EndsReservationsOfADroppedSegment) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = 8 * kMiB, .disk_bytes = 0}, {});
    const auto committed_late = f.store->reserve(Tier::memory, 1, 1000);
    const auto abandoned_late = f.store->reserve(Tier::memory, 2, 1000);
    f.store->set_quota({}, {});
    f.store->check_invariants();
    test::fill_payload(f.store->payload(*committed_late), 1);
    EXPECT_FALSE(f.store->commit(*committed_late, 1));
    f.store->abandon(*abandoned_late);
    EXPECT_FALSE(f.store->find(1));
    EXPECT_EQ(f.store->usage().memory_bytes, 0u);
    EXPECT_EQ(f.store->usage().draining_segments, 0u);
    f.store->set_quota({.memory_bytes = kMiB, .disk_bytes = 0}, {});
    EXPECT_TRUE(f.admit_to_memory(1, 1000));
    EXPECT_TRUE(f.admit_to_memory(2, 1000));
    f.store->check_invariants();
}

// Drops the segment after each possible number of device steps. Every write must end, whatever the step.
TEST(StoreQuota, EndsWritesOfADroppedSegmentAtEveryStep) {
    for (int steps = 0; steps < 8; steps++) {
        StoreFixture f;
        f.store->set_quota({.memory_bytes = 0, .disk_bytes = 8 * kMiB}, {});
        TestWrite first(*f.store->reserve(Tier::disk, 1, 1000));
        TestWrite second(*f.store->reserve(Tier::disk, 2, 2000));
        TestWrite late(*f.store->reserve(Tier::disk, 3, 3000));
        ASSERT_TRUE(f.store->write(first));
        ASSERT_TRUE(f.store->write(second));
        for (int i = 0; i < steps; i++) f.device.wait(f.clock.now_ns() + 1'000'000'000);
        f.store->set_quota({}, {});
        EXPECT_FALSE(f.store->write(late));
        f.run();
        f.store->check_invariants();
        ASSERT_TRUE(first.result && second.result) << steps;
        EXPECT_TRUE(first.result == 0 || first.result == -ECANCELED);
        EXPECT_EQ(f.store->usage().disk_bytes, 0u);
        EXPECT_EQ(f.store->usage().blocks, 0u);
        EXPECT_EQ(f.store->usage().draining_segments, 0u) << steps;
        EXPECT_TRUE(f.disk.paths().empty()) << steps;
        EXPECT_EQ(f.device.open_files(), 0u) << steps;
        // The blocks can be admitted again.
        f.store->set_quota({.memory_bytes = 0, .disk_bytes = 8 * kMiB}, {});
        EXPECT_EQ(f.admit_to_disk(3, 3000), 0);
        EXPECT_EQ(f.admit_to_disk(1, 1000), 0);
    }
}

TEST(StoreQuota, ClearRemovesEverything) {
    FullStore f(Tier::disk);
    f.store->set_quota({.memory_bytes = 8 * kMiB, .disk_bytes = 64 * kMiB}, {});
    ASSERT_TRUE(f.admit_to_memory(900, 1000));
    const StoreUsage before = f.store->usage();
    std::size_t dropped = 0;
    f.store->clear({.unread_blocks = {}, .dropping = [&](const Segment&) { dropped++; }});
    f.run();
    EXPECT_EQ(dropped, before.disk_segments + before.memory_segments);
    EXPECT_EQ(f.store->usage().blocks, 0u);
    EXPECT_TRUE(f.disk.paths().empty());
    f.store->check_invariants();
}

TEST(StoreQuota, PacksMixedSizesWithoutWastingSegments) {
    StoreFixture f(4000, 3 * kMiB);
    f.store->set_quota({.memory_bytes = 0, .disk_bytes = 96 * kMiB}, {});
    for (std::uint32_t block_id = 0; block_id < 4000; block_id++) {
        f.admit_to_disk(block_id, static_cast<std::uint32_t>(mix64(block_id) % (3 * kMiB)));
    }
    const StoreUsage usage = f.store->usage();
    EXPECT_LE(usage.disk_bytes, 96 * kMiB);
    EXPECT_GT(usage.disk_bytes, 95 * kMiB);
    EXPECT_LE(usage.disk_allocated_bytes, 96 * kMiB + 16 * kMiB);
    f.store->check_invariants();
}

}  // namespace
}  // namespace larder::cache
