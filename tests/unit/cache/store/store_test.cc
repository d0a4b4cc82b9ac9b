#include "cache/store/store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "base/huge_pages.h"
#include "tests/unit/cache/store/store_fixture.h"

namespace larder::cache {
namespace {

using test::kMiB;
using test::StoreFixture;
using test::TestWrite;

TEST(Store, KeepsBlocksInMemory) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = kMiB, .disk_bytes = 0}, {});
    EXPECT_FALSE(f.store->find(7));
    EXPECT_TRUE(f.admit_to_memory(7, 1000));
    EXPECT_TRUE(f.admit_to_memory(8, 0));
    EXPECT_TRUE(f.holds(7, 1000));
    EXPECT_TRUE(f.holds(8, 0));
    const StoreUsage usage = f.store->usage();
    EXPECT_EQ(usage.blocks, 2u);
    EXPECT_EQ(usage.payload_bytes, 1000u);
    EXPECT_EQ(usage.memory_bytes, protocol::record_bytes(1000, 64) + 64);
    EXPECT_EQ(usage.memory_segments, 1u);
    f.store->check_invariants();
}

// A page fault for each page of a block would cost more than the copy.
TEST(Store, ReservedMemoryIsBackedBeforeItIsWritten) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = 1024 * kMiB, .disk_bytes = 0}, {});
    const Segment* segment = nullptr;
    std::uint64_t end = 0;
    while (end < 5 * kMiB) {
        const auto room = f.store->reserve(Tier::memory, static_cast<std::uint32_t>(end / kMiB), kMiB - 64);
        ASSERT_TRUE(room);
        ASSERT_TRUE(segment == nullptr || segment == room->segment);
        segment = room->segment;
        end = room->offset + protocol::record_bytes(kMiB - 64, 64);
    }
    ASSERT_GE(segment->size_bytes(), 6 * kMiB);
    for (std::uint64_t at = 0; at < end; at += kHugePageBytes) {
        unsigned char is_backed = 0;
        ASSERT_EQ(::mincore(const_cast<std::byte*>(segment->memory()) + at, kPageBytes, &is_backed), 0);
        EXPECT_EQ(is_backed & 1, 1) << at;
    }
}

TEST(Store, ReadersCannotWriteToMemorySegments) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = kMiB, .disk_bytes = 0}, {});
    ASSERT_TRUE(f.admit_to_memory(1, 100));
    const Segment& segment = *f.store->find(1)->segment;
    EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd(), 0), MAP_FAILED);
    EXPECT_NE(::ftruncate(segment.fd(), 0), 0);
    EXPECT_LT(::pwrite(segment.fd(), "x", 1, 0), 0);
    void* mapped = ::mmap(nullptr, segment.size_bytes(), PROT_READ, MAP_SHARED, segment.fd(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    EXPECT_NE(::mprotect(mapped, 4096, PROT_READ | PROT_WRITE), 0);
    EXPECT_EQ(std::memcmp(mapped, segment.memory(), segment.size_bytes()), 0);
    ::munmap(mapped, segment.size_bytes());
}

TEST(Store, FillsTheMemoryQuotaToTheLastRecord) {
    StoreFixture f(1000, 100 * 1024);
    const std::uint64_t quota = 40 * kMiB + 12345;
    f.store->set_quota({.memory_bytes = quota, .disk_bytes = 0}, {});
    std::uint32_t admitted = 0;
    while (f.admit_to_memory(admitted, 100 * 1024)) admitted++;
    const std::uint64_t record = protocol::record_bytes(100 * 1024, 64);
    EXPECT_EQ(admitted, quota / record);
    EXPECT_EQ(f.store->reserve(Tier::memory, 999, 100 * 1024).error(), Refusal::quota_reached);
    const StoreUsage usage = f.store->usage();
    EXPECT_LE(usage.memory_bytes, quota);
    EXPECT_LE(usage.memory_allocated_bytes, quota + SegmentSpace::kSegmentBytesMin);
    EXPECT_GT(usage.memory_segments, 2u);
    f.store->check_invariants();
}

TEST(Store, AdmitsNothingWithoutQuota) {
    StoreFixture f;
    EXPECT_EQ(f.store->reserve(Tier::memory, 1, 10).error(), Refusal::quota_reached);
    EXPECT_EQ(f.admit_to_disk(1, 10), StoreFixture::refused(Refusal::quota_reached));
    f.store->set_quota({.memory_bytes = 64, .disk_bytes = 511}, {});
    EXPECT_EQ(f.store->reserve(Tier::memory, 1, 10).error(), Refusal::quota_reached);
    EXPECT_EQ(f.admit_to_disk(1, 10), StoreFixture::refused(Refusal::quota_reached));
    EXPECT_EQ(f.store->usage().memory_segments + f.store->usage().disk_segments, 0u);
    EXPECT_EQ(f.store->admissions_refused(Refusal::quota_reached), 2u) << "only refusals of the disk tier count";
}

TEST(Store, GivesOneReservationPerBlock) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = kMiB, .disk_bytes = kMiB}, {});
    const auto room = f.store->reserve(Tier::memory, 3, 100);
    ASSERT_TRUE(room);
    EXPECT_FALSE(f.store->find(3));
    EXPECT_EQ(f.store->reserve(Tier::memory, 3, 100).error(), Refusal::already_cached);
    EXPECT_EQ(f.store->reserve(Tier::disk, 3, 100).error(), Refusal::already_cached);
    f.store->abandon(*room);
    EXPECT_EQ(f.store->usage().memory_bytes, 0u);
    EXPECT_TRUE(f.admit_to_memory(3, 100));
    EXPECT_EQ(f.store->reserve(Tier::disk, 3, 100).error(), Refusal::already_cached);
    f.store->check_invariants();
}

TEST(Store, ReusesAbandonedRoom) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = kMiB, .disk_bytes = 0}, {});
    std::vector<Reservation> rooms;
    for (std::uint32_t block_id = 0; block_id < 100; block_id++) {
        rooms.push_back(*f.store->reserve(Tier::memory, block_id, 4000));
    }
    f.store->commit(rooms[50], 1);
    for (std::uint32_t block_id = 0; block_id < 100; block_id++) {
        if (block_id != 50) f.store->abandon(rooms[block_id]);
        f.store->check_invariants();
    }
    // A failed fetch abandons its reservation, so a long failure of the remote uses up no quota.
    EXPECT_EQ(f.store->usage().memory_bytes, protocol::record_bytes(4000, 64));
    const auto room = f.store->reserve(Tier::memory, 0, 4000);
    EXPECT_EQ(room->offset, 0u);
    f.store->abandon(*room);
}

TEST(Store, WritesSelfDescribingRecords) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = 0, .disk_bytes = 4 * kMiB}, {});
    EXPECT_EQ(f.admit_to_disk(5, 100'000), 0);
    EXPECT_EQ(f.admit_to_disk(6, 1), 0);
    EXPECT_TRUE(f.holds(5, 100'000));
    EXPECT_TRUE(f.holds(6, 1));
    const BlockLocation location = *f.store->find(5);
    std::byte bytes[512];
    ASSERT_EQ(::pread(location.segment->fd(), bytes, sizeof bytes, static_cast<off_t>(location.offset)), 512);
    const auto header = protocol::read_record_header(bytes);
    ASSERT_TRUE(header);
    EXPECT_EQ(header->dataset_id, test::kDatasetId);
    EXPECT_EQ(header->block_id, 5u);
    EXPECT_EQ(header->payload_bytes, 100'000u);
    EXPECT_EQ(header->segment, location.segment->id());
    // Padding is zero.
    const BlockLocation small = *f.store->find(6);
    ASSERT_EQ(::pread(small.segment->fd(), bytes, sizeof bytes, static_cast<off_t>(small.offset)), 512);
    for (std::size_t at = 65; at < sizeof bytes; at++) ASSERT_EQ(bytes[at], std::byte{0});
    EXPECT_EQ(f.store->usage().disk_bytes, protocol::record_bytes(100'000, 512) + 512);
    f.store->check_invariants();
}

TEST(Store, QueuesWritesWhileTheSegmentIsCreated) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = 0, .disk_bytes = 4 * kMiB}, {});
    std::vector<std::unique_ptr<TestWrite>> writes;
    for (std::uint32_t block_id = 0; block_id < 10; block_id++) {
        writes.push_back(std::make_unique<TestWrite>(*f.store->reserve(Tier::disk, block_id, 5000)));
        ASSERT_TRUE(f.store->write(*writes.back()));
    }
    EXPECT_EQ(f.device.operations(test::FakeAction::write), 0u);
    f.run();
    for (std::uint32_t block_id = 0; block_id < 10; block_id++) {
        EXPECT_EQ(writes[block_id]->result, 0);
        EXPECT_TRUE(f.holds(block_id, 5000));
    }
}

TEST(Store, BoundsTheBytesInFlight) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = 0, .disk_bytes = 512 * kMiB}, {});
    std::vector<Reservation> rooms;
    for (std::uint32_t block_id = 0;; block_id++) {
        const auto room = f.store->reserve(Tier::disk, block_id, kMiB);
        if (!room) {
            EXPECT_EQ(room.error(), Refusal::busy);
            break;
        }
        rooms.push_back(*room);
    }
    EXPECT_EQ(rooms.size(), 63u);
    for (const Reservation& room : rooms) f.store->abandon(room);
    EXPECT_TRUE(f.store->reserve(Tier::disk, 900, kMiB));
    f.run();
}

TEST(Store, ForgottenBlockCanBeAdmittedAgain) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = 0, .disk_bytes = kMiB}, {});
    ASSERT_EQ(f.admit_to_disk(5, 1000), 0);
    const std::uint64_t used = f.store->usage().disk_bytes;
    f.store->forget(5);
    f.store->forget(5);
    EXPECT_FALSE(f.store->find(5));
    EXPECT_EQ(f.store->usage().disk_bytes, used);
    EXPECT_EQ(f.store->usage().payload_bytes, 0u);
    f.store->check_invariants();
    EXPECT_EQ(f.admit_to_disk(5, 1000), 0);
    EXPECT_TRUE(f.holds(5, 1000));
    f.store->check_invariants();
}

TEST(Store, GrowsWithTheDataset) {
    StoreFixture f(10, 100);
    f.store->set_quota({.memory_bytes = kMiB, .disk_bytes = 0}, {});
    ASSERT_TRUE(f.admit_to_memory(9, 100));
    f.store->grow_block_ids(20, 5000);
    EXPECT_TRUE(f.admit_to_memory(19, 5000));
    EXPECT_TRUE(f.holds(9, 100));
    EXPECT_TRUE(f.holds(19, 5000));
}

}  // namespace
}  // namespace larder::cache
