// Disks that are full, fail, write short or lack direct I/O.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/store/segment_header.h"
#include "tests/unit/cache/store/store_fixture.h"

namespace larder::cache {
namespace {

using test::FakeAction;
using test::Fault;
using test::kMiB;
using test::StoreFixture;
using test::TestWrite;

constexpr std::int32_t kDiskFull = 1 + static_cast<std::int32_t>(Refusal::disk_full);
constexpr std::int32_t kDiskFailed = 1 + static_cast<std::int32_t>(Refusal::disk_failed);

TEST(StoreFault, FullDiskIsRetriedAfterTheRetryInterval) {
    StoreFixture f(1000, kMiB, true, 4 * kMiB);
    f.store->set_quota({.memory_bytes = 0, .disk_bytes = 8 * kMiB}, {});
    EXPECT_EQ(f.admit_to_disk(1, 1000), -ENOSPC);
    EXPECT_TRUE(f.store->disk_full());
    ASSERT_TRUE(f.store->disk_problem());
    EXPECT_EQ(f.store->disk_problem()->code, ErrorCode::no_space);
    EXPECT_THAT(f.store->disk_problem()->message, testing::HasSubstr("/segments/"));
    EXPECT_EQ(f.admit_to_disk(1, 1000), kDiskFull);
    EXPECT_EQ(f.store->usage().disk_bytes, 0u);
    EXPECT_TRUE(f.disk.paths().empty());
    f.store->check_invariants();

    // The disk is still full: the store tries once in ten seconds.
    f.clock.advance_ns(DiskSegments::kRetryAfterNs);
    EXPECT_EQ(f.admit_to_disk(1, 1000), -ENOSPC);
    EXPECT_EQ(f.admit_to_disk(1, 1000), kDiskFull);
    EXPECT_TRUE(f.store->disk_full());

    f.disk.set_bytes_max(64 * kMiB);
    EXPECT_EQ(f.admit_to_disk(1, 1000), kDiskFull);
    f.clock.advance_ns(DiskSegments::kRetryAfterNs);
    EXPECT_EQ(f.admit_to_disk(1, 1000), 0);
    EXPECT_FALSE(f.store->disk_full());
    EXPECT_FALSE(f.store->disk_problem());
    EXPECT_TRUE(f.holds(1, 1000));
}

TEST(StoreFault, EndsEveryQueuedWriteWhenTheSegmentFails) {
    for (const FakeAction action : {FakeAction::open, FakeAction::allocate, FakeAction::write}) {
        StoreFixture f;
        f.store->set_quota({.memory_bytes = 0, .disk_bytes = 8 * kMiB}, {});
        f.device.inject({.action = action, .error = EDQUOT});
        TestWrite first(*f.store->reserve(Tier::disk, 1, 1000));
        TestWrite second(*f.store->reserve(Tier::disk, 2, 1000));
        const auto late = f.store->reserve(Tier::disk, 3, 1000);
        ASSERT_TRUE(f.store->write(first));
        ASSERT_TRUE(f.store->write(second));
        f.run();
        EXPECT_EQ(first.result, -EDQUOT);
        EXPECT_EQ(second.result, -EDQUOT);
        EXPECT_TRUE(f.store->disk_full());
        TestWrite third(*late);
        EXPECT_FALSE(f.store->write(third));
        f.run();
        EXPECT_EQ(f.store->usage().disk_bytes, 0u);
        EXPECT_EQ(f.store->usage().draining_segments, 0u);
        EXPECT_TRUE(f.disk.paths().empty());
        EXPECT_EQ(f.device.open_files(), 0u);
        f.store->check_invariants();
    }
}

TEST(StoreFault, FailedWriteReleasesItsRoom) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = 0, .disk_bytes = 8 * kMiB}, {});
    ASSERT_EQ(f.admit_to_disk(1, 1000), 0);
    f.device.inject({.action = FakeAction::write, .kind = Fault::Kind::torn, .error = ENOMEM});
    EXPECT_EQ(f.admit_to_disk(2, 100'000), -ENOMEM);
    EXPECT_FALSE(f.store->find(2));
    EXPECT_FALSE(f.store->disk_full());
    EXPECT_TRUE(f.store->disk_problem());
    EXPECT_EQ(f.admit_to_disk(2, 100'000), kDiskFailed);
    // The store still serves cached blocks and admits to memory.
    EXPECT_TRUE(f.holds(1, 1000));
    f.store->set_quota({.memory_bytes = kMiB, .disk_bytes = 8 * kMiB}, {});
    EXPECT_TRUE(f.admit_to_memory(2, 100'000));
    f.clock.advance_ns(DiskSegments::kRetryAfterNs);
    EXPECT_EQ(f.admit_to_disk(3, 100'000), 0);
    EXPECT_EQ(f.store->usage().disk_bytes, protocol::record_bytes(1000, 512) + protocol::record_bytes(100'000, 512));
    f.store->check_invariants();
}

TEST(StoreFault, PlaceThatCannotBeWrittenIsNotWrittenAgain) {
    for (const int error : {EIO, ENODATA, EILSEQ, EREMOTEIO}) {
        StoreFixture f;
        f.store->set_quota({.memory_bytes = 0, .disk_bytes = 8 * kMiB}, {});
        ASSERT_EQ(f.admit_to_disk(1, 1000), 0);
        const std::uint64_t bad = f.store->find(1)->offset + protocol::record_bytes(1000, 512);
        f.device.inject({.action = FakeAction::write, .kind = Fault::Kind::torn, .error = error});
        EXPECT_EQ(f.admit_to_disk(2, 100'000), -error);
        f.store->check_invariants();
        for (std::uint32_t block_id = 3; block_id < 20; ++block_id) {
            f.clock.advance_ns(DiskSegments::kRetryAfterNs);
            ASSERT_EQ(f.admit_to_disk(block_id, 50'000), 0);
            EXPECT_GE(f.store->find(block_id)->offset, bad + protocol::record_bytes(100'000, 512));
        }
        ASSERT_EQ(f.admit_to_disk(2, 100'000), 0) << "the block itself is admitted elsewhere";
        EXPECT_TRUE(f.holds(2, 100'000));
        f.store->check_invariants();
    }
}

TEST(StoreFault, SegmentWithManyBadPlacesTakesNoMoreRecords) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = 0, .disk_bytes = 64 * kMiB}, {});
    ASSERT_EQ(f.admit_to_disk(1, 1000), 0);
    const Segment* first = f.store->find(1)->segment;
    for (int i = 0; i < 4; ++i) {
        f.device.inject({.action = FakeAction::write, .error = EIO});
        EXPECT_EQ(f.admit_to_disk(2, 10'000), -EIO);
        f.clock.advance_ns(DiskSegments::kRetryAfterNs);
        f.store->check_invariants();
    }
    ASSERT_EQ(f.admit_to_disk(2, 10'000), 0);
    EXPECT_NE(f.store->find(2)->segment, first);
    EXPECT_TRUE(f.holds(1, 1000)) << "what the segment holds is served";
    f.store->check_invariants();
    f.store->set_quota({}, {});
    f.run();
    EXPECT_EQ(f.store->usage().disk_bytes, 0u);
    f.store->check_invariants();
}

// Room that was given back in a segment may be in use in another one by the time the segment is closed.
TEST(StoreFault, ClosedSegmentDoesNotTakeMoreThanTheQuota) {
    constexpr std::uint64_t kQuotaBytes = 8 * kMiB;
    StoreFixture f;
    f.store->set_quota({.memory_bytes = 0, .disk_bytes = kQuotaBytes}, {});
    const auto reserve = [&](std::uint32_t block_id, std::uint32_t bytes) {
        return f.store->reserve(Tier::disk, block_id, bytes).value();
    };
    std::vector<Reservation> failing;
    std::vector<Reservation> given_back;
    std::uint32_t block_id = 0;
    for (int i = 0; i < 4; ++i) {
        failing.push_back(reserve(block_id++, 150'000));
        given_back.push_back(reserve(block_id++, 100'000));
    }
    failing.push_back(reserve(block_id++, 150'000));
    const Segment* closed = failing.front().segment;
    given_back.push_back(reserve(block_id++, 100'000));
    failing.push_back(reserve(block_id++, 150'000));
    f.run();
    for (const Reservation& reservation : std::span(given_back).first(4)) f.store->abandon(reservation);
    while (f.admit_to_disk(block_id, 150'000) == 0) ++block_id;
    const std::uint64_t used_bytes = f.store->usage().disk_bytes;
    EXPECT_GT(used_bytes, kQuotaBytes - 200'000);
    EXPECT_GT(f.store->usage().disk_segments, 1u);
    for (int i = 0; i < 4; ++i) {
        TestWrite write(failing[static_cast<std::size_t>(i)]);
        f.device.inject({.action = FakeAction::write, .error = EIO});
        ASSERT_TRUE(f.store->write(write));
        f.run();
        EXPECT_EQ(write.result, -EIO);
        f.store->check_invariants();
        f.clock.advance_ns(DiskSegments::kRetryAfterNs);
    }
    EXPECT_EQ(f.store->usage().disk_bytes, used_bytes);
    // Bytes that are given back in the closed segment later are not used again either.
    f.store->abandon(given_back.back());
    f.store->check_invariants();
    ASSERT_EQ(f.admit_to_disk(block_id, 50'000), 0);
    EXPECT_NE(f.store->find(block_id)->segment, closed);
    for (const Reservation& reservation : std::span(failing).last(2)) f.store->abandon(reservation);
    f.store->check_invariants();
    f.store->set_quota({}, {});
    f.run();
    EXPECT_EQ(f.store->usage().disk_bytes, 0u);
    f.store->check_invariants();
}

TEST(StoreFault, DiskThatFailsAsAWholeCostsLittleRoom) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = 0, .disk_bytes = 64 * kMiB}, {});
    ASSERT_EQ(f.admit_to_disk(1, 1000), 0);
    f.device.inject({.action = FakeAction::write, .times = 1'000'000, .error = EIO});
    for (int second = 0; second < 3600; ++second) {
        f.admit_to_disk(2, 1000);
        f.clock.advance_ns(1'000'000'000);
    }
    EXPECT_LE(f.store->usage().disk_bytes, 5 * protocol::record_bytes(1000, 512));
    EXPECT_LE(f.disk.paths().size(), 1 + DiskSegments::kBadFilesMax);
    f.store->check_invariants();
    f.device.clear_faults();
    f.clock.advance_ns(DiskSegments::kRetryAfterNs);
    EXPECT_EQ(f.admit_to_disk(2, 1000), 0);
    EXPECT_TRUE(f.holds(1, 1000));
    EXPECT_TRUE(f.holds(2, 1000));
    f.store->check_invariants();
}

TEST(StoreFault, InterruptedWriteOfAHeaderIsRepeated) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = 0, .disk_bytes = 64 * kMiB}, {});
    f.device.inject({.action = FakeAction::write, .times = 2, .error = EINTR});
    EXPECT_EQ(f.admit_to_disk(1, 1000), 0);
    ASSERT_EQ(f.disk.paths().size(), 1u);
    const std::string file = f.disk.content(f.disk.paths()[0]);
    const auto header = read_segment_header(std::as_bytes(std::span(file)).first(kSegmentHeaderBytes));
    ASSERT_TRUE(header) << "no restart would find the segment";
    EXPECT_EQ(header->dataset_id, test::kDatasetId);
    EXPECT_TRUE(f.holds(1, 1000));
}

TEST(StoreFault, HeaderThatCannotBeWrittenIsTriedElsewhere) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = 0, .disk_bytes = 64 * kMiB}, {});
    f.device.inject({.action = FakeAction::write, .error = EIO});
    EXPECT_EQ(f.admit_to_disk(1, 1000), -EIO);
    EXPECT_EQ(f.disk.paths().size(), 1u) << "the file keeps the bad place";
    EXPECT_EQ(f.device.open_files(), 0u);
    f.clock.advance_ns(DiskSegments::kRetryAfterNs);
    EXPECT_EQ(f.admit_to_disk(1, 1000), 0);
    EXPECT_EQ(f.disk.paths().size(), 2u);
}

TEST(StoreFault, ContinuesAfterAShortWrite) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = 0, .disk_bytes = 8 * kMiB}, {});
    ASSERT_EQ(f.admit_to_disk(1, 1000), 0);
    f.device.inject({.action = FakeAction::write, .kind = Fault::Kind::short_count, .times = 3});
    EXPECT_EQ(f.admit_to_disk(2, 100'001), 0);
    EXPECT_TRUE(f.holds(2, 100'001));
}

TEST(StoreFault, FallsBackToBufferedWritesWithoutDirectIo) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = 0, .disk_bytes = 8 * kMiB}, {});
    f.device.inject({.action = FakeAction::open, .error = EINVAL});
    EXPECT_EQ(f.admit_to_disk(1, 1000), 0);
    EXPECT_TRUE(f.holds(1, 1000));
    EXPECT_FALSE(f.store->disk_problem());
}

TEST(StoreFault, WorksWithoutPreallocation) {
    StoreFixture f;
    f.store->set_quota({.memory_bytes = 0, .disk_bytes = 8 * kMiB}, {});
    f.device.inject({.action = FakeAction::allocate, .error = EOPNOTSUPP});
    EXPECT_EQ(f.admit_to_disk(1, 1000), 0);
    EXPECT_TRUE(f.holds(1, 1000));
}

// Fails one operation at any point: the failed block is not cached, the accounts hold, and later blocks are cached.
TEST(StoreFault, SurvivesTheFailureOfAnyOperation) {
    for (const FakeAction action : {FakeAction::open, FakeAction::allocate, FakeAction::write, FakeAction::unlink}) {
        for (const std::uint64_t skip : {0, 1, 2, 16, 17, 18}) {
            if (action != FakeAction::write && skip > 1) continue;
            StoreFixture f;
            f.store->set_quota({.memory_bytes = 0, .disk_bytes = 18 * kMiB}, {});
            f.device.inject({.action = action, .skip = skip, .error = EIO});
            std::uint32_t cached = 0;
            for (std::uint32_t block_id = 0; block_id < 18; block_id++) {
                cached += f.admit_to_disk(block_id, kMiB - 64) == 0;
                f.clock.advance_ns(DiskSegments::kRetryAfterNs);
                f.store->check_invariants();
            }
            EXPECT_GE(cached, 16u);
            for (std::uint32_t block_id = 0; block_id < 18; block_id++) {
                EXPECT_TRUE(!f.store->find(block_id) || f.holds(block_id, kMiB - 64));
            }
            f.store->set_quota({}, {});
            f.run();
            f.store->check_invariants();
            EXPECT_EQ(f.device.open_files(), 0u);
        }
    }
}

}  // namespace
}  // namespace larder::cache
