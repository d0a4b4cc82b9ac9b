// Restarts on real files: with the index, without it, after kill -9, and after damage to segments and entries.

#include "cache/store/recovery.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cache/store/index.h"
#include "cache/store/segment_header.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/cache/store/store_fixture.h"

namespace larder::cache {
namespace {

using test::kDatasetId;
using test::kMiB;
using test::TestWrite;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::uint32_t kBlocks = 200;

class Recovery : public testing::Test {
protected:
    ~Recovery() override { stop(); }

    void start(Quota quota = {.memory_bytes = 0, .disk_bytes = 64 * kMiB}, bool with_index = true) {
        device_ = std::move(make_device(DeviceKind::automatic, clock_)->device);
        if (with_index) {
            auto opened = Index::open(
                {.directory = index_directory_, .map_bytes = std::uint64_t{1} << 30, .commit_after_ms = 3'600'000});
            ASSERT_TRUE(opened) << opened.error().message;
            opened_ = opened->report;
            index_ = std::move(opened->index);
        }
        auto recovered = recover_segments(kDatasetId, segments_, index_.get());
        ASSERT_TRUE(recovered) << recovered.error().message;
        report_ = std::move(recovered->report);
        StoreOptions options;
        options.dataset_id = kDatasetId;
        options.block_id_end = kBlocks;
        options.block_bytes_max = 2 * kMiB;
        options.segment_directory = segments_;
        store_ = std::make_unique<DatasetStore>(options, *device_, clock_, index_.get());
        store_->recover(std::move(recovered->segments));
        store_->check_invariants();
        store_->set_quota(quota, {});
        run();
        store_->check_invariants();
    }
    void run() {
        while (store_->operations_in_flight() > 0) device_->wait(clock_.now_ns() + 1'000'000'000);
    }
    void stop() {
        if (device_ != nullptr) device_->stop();
        store_.reset();
        device_.reset();
        index_.reset();
    }
    // As kill -9: what was not committed to the index is not in it. Commits happen in flush only.
    void kill() {
        const std::string as_it_was = directory_ / "as_it_was";
        std::filesystem::copy(index_directory_, as_it_was);
        stop();
        std::filesystem::remove_all(index_directory_);
        std::filesystem::rename(as_it_was, index_directory_);
    }
    static std::uint32_t bytes_of(std::uint32_t block_id) { return 1000 + block_id * 777; }
    void admit(std::uint32_t from, std::uint32_t to) {
        std::vector<std::unique_ptr<TestWrite>> writes;
        for (std::uint32_t block_id = from; block_id < to; block_id++) {
            const auto room = store_->reserve(Tier::disk, block_id, bytes_of(block_id));
            ASSERT_TRUE(room);
            writes.push_back(std::make_unique<TestWrite>(*room));
            ASSERT_TRUE(store_->write(*writes.back()));
        }
        run();
        for (const auto& write : writes) ASSERT_EQ(write->result, 0);
    }
    bool holds(std::uint32_t block_id) {
        const auto location = store_->find(block_id);
        return location && location->payload_bytes == bytes_of(block_id) &&
               test::stored_payload(*location) == test::payload_of(block_id, bytes_of(block_id)) &&
               location->payload_crc == crc32c(test::payload_of(block_id, bytes_of(block_id)));
    }
    void expect_held(std::uint32_t from, std::uint32_t to) {
        for (std::uint32_t block_id = from; block_id < to; block_id++) EXPECT_TRUE(holds(block_id)) << block_id;
    }
    void overwrite(const std::string& path, std::uint64_t offset, std::size_t bytes) {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(static_cast<std::streamoff>(offset));
        file << std::string(bytes, '\x5a');
        ASSERT_TRUE(file.good());
    }
    std::string path_of(std::uint32_t block_id) {
        return segment_path(segments_, store_->find(block_id)->segment->id());
    }

    test::TempDirectory directory_;
    std::string segments_ = directory_ / "segments";
    std::string index_directory_ = directory_ / "index";
    SteadyClock clock_;
    std::unique_ptr<Device> device_;
    std::unique_ptr<Index> index_;
    std::unique_ptr<DatasetStore> store_;
    Index::OpenReport opened_;
    RecoveryReport report_;
};

TEST_F(Recovery, OfNothing) {
    start();
    EXPECT_EQ(report_.segments, 0u);
    EXPECT_TRUE(opened_.created);
}

TEST_F(Recovery, TakesInWhatTheIndexKnows) {
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
    // Open segments take more: no new file for what fits.
    admit(150, 152);
    EXPECT_EQ(store_->usage().disk_segments, before.disk_segments);
    expect_held(0, 152);
}

TEST_F(Recovery, AfterKillScansTheTails) {
    start();
    admit(0, 50);
    index_->flush();
    admit(50, 60);
    kill();
    start();
    EXPECT_EQ(report_.blocks, 60u);
    EXPECT_EQ(report_.blocks_scanned, 10u);
    expect_held(0, 60);
    // What the scan found is in the index now.
    index_->flush();
    kill();
    start();
    EXPECT_EQ(report_.blocks, 60u);
    EXPECT_EQ(report_.blocks_scanned, 0u);
}

TEST_F(Recovery, AfterKillFindsASegmentTheIndexNeverHeardOf) {
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

TEST_F(Recovery, WithoutAnIndex) {
    start({.memory_bytes = 0, .disk_bytes = 64 * kMiB}, false);
    admit(0, 100);
    const std::uint32_t segments = store_->usage().disk_segments;
    stop();
    start({.memory_bytes = 0, .disk_bytes = 64 * kMiB}, false);
    EXPECT_EQ(report_.blocks, 100u);
    expect_held(0, 100);
    // New segments do not collide with the old.
    admit(100, 200);
    EXPECT_GT(store_->usage().disk_segments, segments);
    expect_held(0, 200);
}

TEST_F(Recovery, OfADeletedIndex) {
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

TEST_F(Recovery, OfADamagedIndex) {
    start();
    admit(0, 200);
    stop();
    overwrite(index_directory_ + "/data.mdb", 3 * 4096 + 5, 100);
    start();
    EXPECT_TRUE(opened_.rebuilt);
    EXPECT_EQ(report_.blocks, 200u);
    expect_held(0, 200);
}

TEST_F(Recovery, ScanPassesOverDamagedRecords) {
    start();
    admit(0, 50);
    // One record's header is damaged, another's payload.
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
    // Its reader will see the CRC fail, and forget it.
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

TEST_F(Recovery, OfATruncatedSegment) {
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

TEST_F(Recovery, DropsEntriesThatPointOutside) {
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
    put(segment.size_bytes() - 512, 103, 5000);              // over the end
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

TEST_F(Recovery, ForgetsSegmentsWhoseFileIsGone) {
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

TEST_F(Recovery, RemovesWhatIsNoSegmentOfTheDataset) {
    start();
    admit(0, 20);
    const std::string own = path_of(0);
    stop();
    std::ofstream(segments_ + "/notes.txt") << "hello";
    std::ofstream(segments_ + "/000000ff.segment") << "short";
    std::filesystem::copy_file(own, segments_ + "/00000aaa.segment");  // names another id
    std::vector<std::byte> page(kSegmentHeaderBytes);
    write_segment_header(page, kDatasetId + 1, 0xbbb, kMiB, 512);
    std::ofstream(segments_ + "/00000bbb.segment").write(reinterpret_cast<const char*>(page.data()), 4096);
    write_segment_header(page, kDatasetId, 0xccc, kMiB, 512);
    std::ofstream(segments_ + "/00000ccc.segment").write(reinterpret_cast<const char*>(page.data()), 4096);
    start();
    EXPECT_THAT(report_.removed, SizeIs(5));
    EXPECT_THAT(report_.removed, testing::Contains(testing::HasSubstr("notes.txt: it is no segment")));
    EXPECT_THAT(report_.removed, testing::Contains(testing::HasSubstr("bbb.segment: its header names another")));
    expect_held(0, 20);
    EXPECT_GT(index_->allocate_segment_id(), 0xcccu);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(segments_), {}), report_.segments);
}

TEST_F(Recovery, OfADamagedSegmentHeader) {
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

TEST_F(Recovery, UnderASmallerQuota) {
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
