// Restarts on real files: with the index, without it, after kill -9, and after damage to segments and entries.

#include "cache/store/recovery.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "tests/support/another_user.h"
#include "tests/unit/cache/store/restart_fixture.h"

namespace larder::cache {
namespace {

using test::kDatasetId;
using test::kMiB;
using testing::IsEmpty;
using testing::SizeIs;

class Recovery : public test::RestartFixture {};

TEST_F(Recovery, EmptyDirectoryHasNoSegments) {
    start();
    EXPECT_EQ(report_.segments, 0u);
    EXPECT_TRUE(opened_.created);
}

TEST_F(Recovery, RestoresBlocksFromTheIndexWithoutAScan) {
    start();
    admit(0, 150);
    const StoreUsage before = store_->usage();
    stop();
    start();
    EXPECT_EQ(report_.blocks, 150u);
    EXPECT_EQ(report_.blocks_scanned, 0u);
    EXPECT_EQ(report_.segments_scanned, 0u);
    EXPECT_THAT(report_.removed, IsEmpty());
    EXPECT_FALSE(opened_.rebuilt);
    expect_held(0, 150);
    EXPECT_EQ(store_->usage().disk_bytes, before.disk_bytes);
    EXPECT_EQ(store_->usage().disk_segments, before.disk_segments);
    // Open segments admit more blocks: a block that fits needs no new file.
    admit(150, 152);
    EXPECT_EQ(store_->usage().disk_segments, before.disk_segments);
    expect_held(0, 152);
}

// Reads through the page cache would take memory that belongs to the jobs.
TEST_F(Recovery, RecoveredSegmentsUseDirectIoLikeNewOnes) {
    const auto uses_direct_io = [this] { return (::fcntl(store_->find(0)->segment->fd(), F_GETFL) & O_DIRECT) != 0; };
    start();
    admit(0, 1);
    const bool before = uses_direct_io();
    stop();
    start();
    expect_held(0, 1);
    EXPECT_EQ(uses_direct_io(), before);
}

TEST_F(Recovery, ScansSegmentTailsAfterAKill) {
    start();
    admit(0, 50);
    index_->flush();
    admit(50, 60);
    kill();
    start();
    EXPECT_EQ(report_.blocks, 60u);
    EXPECT_EQ(report_.blocks_scanned, 10u);
    expect_held(0, 60);
    // The index now has the blocks that the scan found.
    index_->flush();
    kill();
    start();
    EXPECT_EQ(report_.blocks, 60u);
    EXPECT_EQ(report_.blocks_scanned, 0u);
}

TEST_F(Recovery, FindsASegmentMissingFromTheIndexAfterAKill) {
    start();
    admit(0, 100);
    const std::uint32_t id = store_->find(0)->segment->id();
    kill();
    start();
    EXPECT_EQ(report_.blocks, 100u);
    EXPECT_GT(report_.segments_scanned, 0u);
    expect_held(0, 100);
    EXPECT_GT(index_->allocate_segment_id(), id);
}

TEST_F(Recovery, RestoresBlocksWithoutAnIndex) {
    start({.memory_bytes = 0, .disk_bytes = 64 * kMiB}, false);
    admit(0, 100);
    const std::uint32_t segments = store_->usage().disk_segments;
    stop();
    start({.memory_bytes = 0, .disk_bytes = 64 * kMiB}, false);
    EXPECT_EQ(report_.blocks, 100u);
    expect_held(0, 100);
    // New segments do not collide with old ones.
    admit(100, 200);
    EXPECT_GT(store_->usage().disk_segments, segments);
    expect_held(0, 200);
}

TEST_F(Recovery, DeletedIndexIsRebuiltFromTheSegments) {
    start();
    admit(0, 200);
    stop();
    std::filesystem::remove_all(index_directory_);
    start();
    EXPECT_TRUE(opened_.created);
    EXPECT_EQ(report_.blocks, 200u);
    EXPECT_EQ(report_.segments_scanned, report_.segments);
    expect_held(0, 200);
    stop();
    start();
    EXPECT_EQ(report_.blocks, 200u);
    EXPECT_EQ(report_.segments_scanned, 0u);
}

TEST_F(Recovery, DamagedIndexIsRebuiltFromTheSegments) {
    start();
    admit(0, 200);
    stop();
    overwrite(index_directory_ + "/data.mdb", 3 * 4096 + 5, 100);
    start();
    EXPECT_TRUE(opened_.rebuilt);
    EXPECT_EQ(report_.blocks, 200u);
    expect_held(0, 200);
}

TEST_F(Recovery, ScanSkipsDamagedRecords) {
    start();
    admit(0, 50);
    // Damages the header of one record and the payload of another.
    const BlockLocation damaged = *store_->find(20);
    const BlockLocation flipped = *store_->find(30);
    ASSERT_EQ(damaged.segment, flipped.segment);
    const std::string path = path_of(20);
    stop();
    overwrite(path, damaged.offset + 8, 4);
    overwrite(path, flipped.offset + 64 + 500, 1);
    std::filesystem::remove_all(index_directory_);
    start();
    EXPECT_EQ(report_.blocks, 49u);
    EXPECT_FALSE(store_->find(20));
    expect_held(0, 20);
    expect_held(31, 50);
    // The reader of block 30 will see its CRC fail and forget the block.
    EXPECT_TRUE(store_->find(30));
    EXPECT_FALSE(holds(30));
    store_->forget(30);
    admit(20, 21);
    admit(30, 31);
    expect_held(0, 50);
    store_->check_invariants();
    stop();
    start();
    expect_held(0, 50);
}

TEST_F(Recovery, BlockThatWasDroppedStaysDropped) {
    start();
    admit(0, 10);
    store_->forget(9);  // its record is the last of the unsealed segment
    store_->forget(4);
    stop();
    start();
    EXPECT_FALSE(store_->find(9));
    EXPECT_FALSE(store_->find(4));
    EXPECT_EQ(report_.blocks, 8u);
    EXPECT_EQ(report_.entries_dropped, 0u);
    admit(9, 10);
    stop();
    start();
    expect_held(9, 10);
    expect_held(0, 4);
    store_->check_invariants();
}

TEST_F(Recovery, RetiredPlaceStaysRetired) {
    start();
    admit(0, 10);
    const BlockLocation bad = *store_->find(4);
    const std::uint64_t bad_end = bad.offset + protocol::record_bytes(bad.payload_bytes, bad.segment->alignment());
    const std::uint32_t segment_id = bad.segment->id();
    store_->retire(4);
    for (int round = 0; round < 2; ++round) {
        stop();
        start();
        EXPECT_FALSE(store_->find(4));
        EXPECT_EQ(report_.blocks, 9u);
        EXPECT_EQ(report_.entries_dropped, 0u);
        store_->check_invariants();
    }
    admit(4, 5);
    admit(10, 100);
    for (std::uint32_t block_id = 0; block_id < 100; ++block_id) {
        const BlockLocation location = *store_->find(block_id);
        if (location.segment->id() != segment_id) continue;
        const std::uint64_t end =
            location.offset + protocol::record_bytes(location.payload_bytes, location.segment->alignment());
        EXPECT_TRUE(end <= bad.offset || location.offset >= bad_end) << block_id;
    }
    expect_held(0, 100);
    store_->check_invariants();
}

// Its records begin further apart than its own alignment asks for, so there are gaps between them.
TEST_F(Recovery, SegmentOfAnotherAlignmentIsServedButTakesNoRecords) {
    constexpr Quota kQuota{.memory_bytes = 0, .disk_bytes = 64 * test::kMiB};
    start(kQuota, false);
    admit(0, 10);
    const Segment& segment = *store_->find(0)->segment;
    const std::uint32_t id = segment.id();
    std::vector<std::byte> header(kSegmentHeaderBytes);
    write_segment_header(header, kDatasetId, id, segment.size_bytes(), 64);
    const std::string path = path_of(0);
    stop();
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
        .write(reinterpret_cast<const char*>(header.data()), kSegmentHeaderBytes);
    start(kQuota, false);
    EXPECT_EQ(store_->find(0)->segment->alignment(), 64u);
    expect_held(0, 10);
    admit(10, 11);
    EXPECT_NE(store_->find(10)->segment->id(), id);
    store_->check_invariants();
}

// A file whose reads fail with EIO lies over a segment file while the object lives. Needs root.
class UnreadableFile {
public:
    explicit UnreadableFile(const std::string& path)
        : path_(path), mounted_(::mount("/proc/self/mem", path.c_str(), nullptr, MS_BIND, nullptr) == 0) {}
    ~UnreadableFile() {
        if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
    }
    UnreadableFile(const UnreadableFile&) = delete;
    UnreadableFile& operator=(const UnreadableFile&) = delete;
    bool mounted() const { return mounted_; }

private:
    const std::string path_;
    const bool mounted_;
};

TEST_F(Recovery, UnreadableSegmentIsLeftOutAndKept) {
    start();
    admit(0, 200);
    const std::string path = path_of(199);
    const std::uint32_t id = store_->find(199)->segment->id();
    std::vector<std::uint32_t> lost(store_->find(199)->segment->block_ids().begin(),
                                    store_->find(199)->segment->block_ids().end());
    ASSERT_LT(lost.size(), 200u);
    stop();
    {
        const UnreadableFile unreadable(path);
        if (!unreadable.mounted()) GTEST_SKIP() << "no file may be mounted";
        start();
        EXPECT_EQ(report_.blocks, 200 - lost.size());
        ASSERT_THAT(report_.problems, SizeIs(1));
        EXPECT_THAT(report_.problems[0].message, testing::HasSubstr(path));
        EXPECT_EQ(report_.problems[0].system_errno, EIO);
        EXPECT_THAT(report_.removed, IsEmpty());
        EXPECT_GT(index_->allocate_segment_id(), id) << "its id is not used again";
        for (std::uint32_t block_id = 0; block_id < 200; ++block_id) {
            EXPECT_EQ(holds(block_id), std::ranges::find(lost, block_id) == lost.end()) << block_id;
        }
        stop();
    }
    start();
    EXPECT_THAT(report_.problems, IsEmpty());
    expect_held(0, 200);
}

TEST_F(Recovery, SegmentOfAnotherOwnerIsLeftOutAndKept) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root may give files away";
    ASSERT_EQ(::chmod(directory_.path().c_str(), 0777), 0);
    start();
    admit(0, 200);
    const std::string path = path_of(199);
    const std::size_t lost = store_->find(199)->segment->block_ids().size();
    stop();
    ASSERT_EQ(::chmod(segments_.c_str(), 0777), 0);
    for (const auto& entry : std::filesystem::directory_iterator(segments_)) {
        ASSERT_EQ(::chmod(entry.path().c_str(), 0666), 0);
    }
    ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
    {
        const test::AnotherUser another;
        const Recovered recovered = recover_segments(kDatasetId, segments_, nullptr);
        EXPECT_EQ(recovered.report.blocks, 200 - lost);
        ASSERT_THAT(recovered.report.problems, SizeIs(1));
        EXPECT_THAT(recovered.report.problems[0].message, testing::HasSubstr(path));
        EXPECT_EQ(recovered.report.problems[0].system_errno, EACCES);
    }
    // A segment that may only be read is served, and takes no records.
    ASSERT_EQ(::chmod(path.c_str(), 0444), 0);
    {
        const test::AnotherUser another;
        const Recovered recovered = recover_segments(kDatasetId, segments_, nullptr);
        EXPECT_EQ(recovered.report.blocks, 200u);
        EXPECT_THAT(recovered.report.problems, SizeIs(1));
        EXPECT_EQ(std::ranges::count_if(recovered.segments, &RecoveredSegment::sealed), 1);
    }
    start();
    expect_held(0, 200);
}

TEST_F(Recovery, UnreadableDirectoryLosesNoRows) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root may read everything";
    start();
    admit(0, 20);
    stop();
    ASSERT_EQ(::chmod(directory_.path().c_str(), 0755), 0);
    ASSERT_EQ(::chmod(segments_.c_str(), 0700), 0);
    {
        auto opened = Index::open({.directory = index_directory_, .map_bytes = std::uint64_t{1} << 30});
        ASSERT_TRUE(opened);
        const test::AnotherUser another;
        const Recovered recovered = recover_segments(kDatasetId, segments_, opened->index.get());
        EXPECT_EQ(recovered.report.segments, 0u);
        EXPECT_EQ(recovered.report.segments_missing, 0u);
        EXPECT_THAT(recovered.report.problems, SizeIs(1));
    }
    start();
    EXPECT_EQ(report_.segments_scanned, 0u);
    expect_held(0, 20);
}

TEST_F(Recovery, FindsRecordsThatWereWrittenAfterTheirSegmentWasFull) {
    start();
    admit(0, 1);
    const std::uint32_t first = store_->find(0)->segment->id();
    std::vector<std::unique_ptr<test::TestWrite>> writes;
    std::uint32_t block_id = 1;
    for (;; ++block_id) {
        ASSERT_LT(block_id, kBlocks);
        const auto room = store_->reserve(Tier::disk, block_id, bytes_of(block_id));
        ASSERT_TRUE(room);
        const bool is_full = room->segment->id() != first;
        writes.push_back(std::make_unique<test::TestWrite>(*room));
        ASSERT_TRUE(store_->write(*writes.back()));
        if (is_full) break;
    }
    index_->flush();  // what the index knows of the full segment, before the writes have ended
    run();
    kill();
    start();
    expect_held(0, block_id);
}

TEST_F(Recovery, FindsRecordsBetweenThoseOfTheIndex) {
    start();
    admit(0, 10);
    index_->flush();
    const BlockLocation lost = *store_->find(4);
    index_->remove_block(kDatasetId, lost.segment->id(), static_cast<std::uint32_t>(lost.offset / kOffsetUnitBytes));
    stop();
    start();
    EXPECT_EQ(report_.blocks_scanned, 1u);
    expect_held(0, 10);
    store_->check_invariants();
}

TEST_F(Recovery, PrefersTheLaterRecordOfABlock) {
    start();
    admit(0, 10);
    store_->forget(4);
    admit(4, 5);
    const std::uint64_t offset = store_->find(4)->offset;
    stop();
    std::filesystem::remove_all(index_directory_);
    start();
    EXPECT_EQ(store_->find(4)->offset, offset);
    expect_held(0, 10);
}

TEST_F(Recovery, TruncatedSegmentLosesOnlyTheBlocksCutOff) {
    for (const bool with_index : {true, false}) {
        start();
        admit(0, 100);
        const BlockLocation cut = *store_->find(60);
        const std::string path = path_of(60);
        std::vector<std::uint32_t> behind;
        for (const std::uint32_t block_id : cut.segment->block_ids()) {
            if (store_->find(block_id)->offset >= cut.offset) behind.push_back(block_id);
        }
        stop();
        std::filesystem::resize_file(path, cut.offset + 100);
        if (!with_index) std::filesystem::remove_all(index_directory_);
        start();
        EXPECT_EQ(report_.entries_dropped, with_index ? behind.size() : 0u);
        EXPECT_EQ(report_.blocks, 100 - behind.size());
        for (std::uint32_t block_id = 0; block_id < 100; block_id++) {
            EXPECT_EQ(holds(block_id), std::ranges::find(behind, block_id) == behind.end());
        }
        for (const std::uint32_t block_id : behind) admit(block_id, block_id + 1);
        expect_held(0, 100);
        store_->clear({});
        run();
        stop();
    }
}

TEST_F(Recovery, DropsIndexEntriesWithInvalidLocations) {
    start();
    admit(0, 20);
    const Segment& segment = *store_->find(0)->segment;
    const auto put = [&](std::uint64_t offset, std::uint32_t block_id, std::uint32_t payload_bytes) {
        index_->put_block(kDatasetId, segment.id(),
                          {static_cast<std::uint32_t>(offset / 64), block_id, payload_bytes, 1});
    };
    put(0, 100, 10);                                         // in the header page
    put(store_->find(3)->offset + 512, 101, 10);             // within another record
    put(store_->find(19)->offset + 64, 102, 10);             // not aligned
    put(segment.size_bytes() - 512, 103, 5000);              // past the end of the segment
    put(std::uint64_t{64} * 0xffffffff / 64 * 64, 104, 10);  // far outside
    stop();
    start();
    EXPECT_EQ(report_.entries_dropped, 5u);
    EXPECT_EQ(report_.blocks, 20u);
    expect_held(0, 20);
    for (std::uint32_t block_id = 100; block_id < 105; block_id++) EXPECT_FALSE(store_->find(block_id));
    stop();
    start();
    EXPECT_EQ(report_.entries_dropped, 0u);
}

TEST_F(Recovery, ForgetsSegmentsWithMissingFiles) {
    start();
    admit(0, 200);
    const std::string path = path_of(199);
    const std::size_t lost = store_->find(199)->segment->block_ids().size();
    stop();
    std::filesystem::remove(path);
    start();
    EXPECT_EQ(report_.segments_missing, 1u);
    EXPECT_EQ(report_.blocks, 200 - lost);
    stop();
    start();
    EXPECT_EQ(report_.segments_missing, 0u);
}

TEST_F(Recovery, RemovesFilesThatAreNoSegmentsOfTheDataset) {
    start();
    admit(0, 20);
    const std::string own = path_of(0);
    stop();
    std::ofstream(segments_ + "/notes.txt") << "hello";
    std::ofstream(segments_ + "/000000ff.segment") << "short";
    std::filesystem::copy_file(own, segments_ + "/00000aaa.segment");  // its header names another id
    std::vector<std::byte> page(kSegmentHeaderBytes);
    write_segment_header(page, kDatasetId + 1, 0xbbb, kMiB, 512);
    std::ofstream(segments_ + "/00000bbb.segment").write(reinterpret_cast<const char*>(page.data()), 4096);
    write_segment_header(page, kDatasetId, 0xccc, kMiB, 512);
    std::ofstream(segments_ + "/00000ccc.segment").write(reinterpret_cast<const char*>(page.data()), 4096);
    start();
    EXPECT_THAT(report_.removed, SizeIs(5));
    EXPECT_THAT(report_.removed, testing::Contains(testing::HasSubstr("notes.txt: it is not a segment")));
    EXPECT_THAT(report_.removed, testing::Contains(testing::HasSubstr("bbb.segment: its header names another")));
    expect_held(0, 20);
    EXPECT_GT(index_->allocate_segment_id(), 0xcccu);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(segments_), {}), report_.segments);
}

TEST_F(Recovery, SegmentWithADamagedHeaderIsRemoved) {
    start();
    admit(0, 20);
    const std::string path = path_of(0);
    stop();
    overwrite(path, 20, 1);
    start();
    EXPECT_EQ(report_.blocks, 0u);
    EXPECT_THAT(report_.removed, SizeIs(1));
    admit(0, 20);
    stop();
    start();
    expect_held(0, 20);
}

TEST_F(Recovery, SmallerQuotaDropsRecoveredSegments) {
    start();
    admit(0, 200);
    ASSERT_GT(store_->usage().disk_bytes, 10 * kMiB);
    stop();
    start({.memory_bytes = 0, .disk_bytes = kMiB});
    EXPECT_LE(store_->usage().disk_bytes, kMiB);
    stop();
    start();
    EXPECT_EQ(report_.blocks, store_->usage().blocks);
}

TEST_F(Recovery, IgnoresBlocksBeyondTheDataset) {
    start();
    admit(0, 20);
    index_->put_block(kDatasetId, store_->find(0)->segment->id(),
                      {static_cast<std::uint32_t>(store_->find(0)->segment->tail_bytes() / 64), kBlocks, 10, 1});
    stop();
    start();
    expect_held(0, 20);
    EXPECT_EQ(store_->usage().blocks, 20u);
}

}  // namespace
}  // namespace larder::cache
