#include "cache/store/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using test::TempDirectory;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::uint64_t kLargeDatasetId = 0xfedcba9876543210;

std::unique_ptr<Index> open_index(const std::string& directory) {
    auto opened = Index::open({.directory = directory, .map_bytes = std::uint64_t{1} << 30});
    EXPECT_TRUE(opened) << opened.error().message;
    EXPECT_FALSE(opened->report.rebuilt) << opened->report.reason;
    return std::move(opened->index);
}

StoredBlock block(std::uint32_t number) {
    return {.offset_units = 64 + number * 8, .block_id = number, .payload_bytes = 400 + number, .payload_crc = ~number};
}

TEST(Index, RemembersBlocksBySegmentInOrder) {
    const TempDirectory directory;
    {
        auto index = open_index(directory / "index");
        index->put_segment(kLargeDatasetId, 300, 1 << 24, 512, true);
        index->put_segment(kLargeDatasetId, 2, 1 << 20, 4096, false);
        for (const std::uint32_t number : {9u, 1u, 500u}) index->put_block(kLargeDatasetId, 300, block(number));
        index->put_block(kLargeDatasetId, 2, block(7));
        // Rows of the neighbouring datasets in the key space.
        index->put_segment(kLargeDatasetId + 1, 1, 5, 512, false);
        index->put_block(kLargeDatasetId + 1, 1, block(8));
        index->put_segment(kLargeDatasetId - 1, 0xffffffff, 5, 512, false);
    }
    auto index = open_index(directory / "index");
    const auto segments = index->load(kLargeDatasetId);
    ASSERT_TRUE(segments);
    ASSERT_EQ(segments->size(), 2u);
    EXPECT_EQ((*segments)[0].id, 2u);
    EXPECT_EQ((*segments)[0].alignment, 4096u);
    EXPECT_FALSE((*segments)[0].sealed);
    EXPECT_THAT((*segments)[0].blocks, ElementsAre(block(7)));
    EXPECT_EQ((*segments)[1].id, 300u);
    EXPECT_EQ((*segments)[1].size_bytes, 1u << 24);
    EXPECT_TRUE((*segments)[1].sealed);
    EXPECT_THAT((*segments)[1].blocks, ElementsAre(block(1), block(9), block(500)));
    EXPECT_THAT(*index->load(12345), IsEmpty());
}

TEST(Index, ForgetsBlocksSegmentsAndDatasets) {
    const TempDirectory directory;
    auto index = open_index(directory / "index");
    for (std::uint32_t segment = 1; segment <= 3; segment++) {
        index->put_segment(kLargeDatasetId, segment, 1 << 20, 512, false);
        for (std::uint32_t number = 0; number < 100; number++)
            index->put_block(kLargeDatasetId, segment, block(number));
    }
    index->put_segment(kLargeDatasetId + 1, 9, 1 << 20, 512, false);
    index->put_block(kLargeDatasetId + 1, 9, block(1));
    index->remove_block(kLargeDatasetId, 1, block(50).offset_units);
    index->remove_segment(kLargeDatasetId, 2);
    index->flush();
    auto segments = *index->load(kLargeDatasetId);
    ASSERT_EQ(segments.size(), 2u);
    EXPECT_EQ(segments[0].blocks.size(), 99u);
    EXPECT_EQ(segments[1].id, 3u);
    EXPECT_EQ(segments[1].blocks.size(), 100u);
    index->remove_dataset(kLargeDatasetId);
    // A change posted after the removal survives, although both commit together.
    index->put_segment(kLargeDatasetId, 4, 1 << 20, 512, false);
    index->flush();
    segments = *index->load(kLargeDatasetId);
    ASSERT_EQ(segments.size(), 1u);
    EXPECT_EQ(segments[0].id, 4u);
    EXPECT_EQ((*index->load(kLargeDatasetId + 1)).size(), 1u);
}

TEST(Index, RemovesMoreThanOneTransactionHolds) {
    const TempDirectory directory;
    auto index = open_index(directory / "index");
    index->put_segment(kLargeDatasetId, 1, 1 << 30, 512, false);
    for (std::uint32_t number = 0; number < 120'000; number++) index->put_block(kLargeDatasetId, 1, block(number));
    index->flush();
    EXPECT_EQ((*index->load(kLargeDatasetId))[0].blocks.size(), 120'000u);
    index->remove_dataset(kLargeDatasetId);
    index->put_segment(kLargeDatasetId, 2, 1 << 20, 512, false);
    index->flush();
    const auto segments = *index->load(kLargeDatasetId);
    ASSERT_EQ(segments.size(), 1u);
    EXPECT_EQ(segments[0].id, 2u);
    EXPECT_THAT(segments[0].blocks, IsEmpty());
}

TEST(Index, CommitsWithoutAFlush) {
    const TempDirectory directory;
    auto opened = Index::open({.directory = directory / "index", .commit_after_ms = 1});
    opened->index->put_segment(kLargeDatasetId, 1, 1 << 20, 512, false);
    while (opened->index->status().changes_committed == 0) std::this_thread::yield();
    EXPECT_EQ((*opened->index->load(kLargeDatasetId)).size(), 1u);
}

TEST(Index, AcceptsChangesFromManyThreads) {
    const TempDirectory directory;
    auto index = open_index(directory / "index");
    std::vector<std::thread> threads;
    for (std::uint32_t segment = 1; segment <= 4; segment++) {
        threads.emplace_back([&index, segment] {
            index->put_segment(kLargeDatasetId, segment, 1 << 20, 512, false);
            for (std::uint32_t number = 0; number < 2000; number++) {
                index->put_block(kLargeDatasetId, segment, block(number));
                if (number % 500 == 0) index->flush();
            }
        });
    }
    for (auto& thread : threads) thread.join();
    index->flush();
    const auto segments = *index->load(kLargeDatasetId);
    ASSERT_EQ(segments.size(), 4u);
    for (const StoredSegment& segment : segments) EXPECT_EQ(segment.blocks.size(), 2000u);
}

TEST(Index, NeverReusesSegmentIds) {
    const TempDirectory directory;
    std::uint32_t last = 0;
    {
        auto index = open_index(directory / "index");
        for (int i = 0; i < 5; i++) last = index->allocate_segment_id();
        index->put_segment(kLargeDatasetId, last, 1 << 20, 512, false);
        index->remove_segment(kLargeDatasetId, last);
    }
    auto index = open_index(directory / "index");
    EXPECT_GT(index->allocate_segment_id(), last);
    index->reserve_segment_ids_below(1000);
    index->reserve_segment_ids_below(50);
    EXPECT_EQ(index->allocate_segment_id(), 1000u);
}

TEST(Index, KeepsWorkingWhenTheMapIsFull) {
    const TempDirectory directory;
    auto index = std::move(Index::open({.directory = directory / "index",
                                        .map_bytes = 256 * 1024,
                                        .commit_after_ms = 3'600'000,
                                        .commit_changes_max = 1'000'000})
                               ->index);
    index->put_segment(kLargeDatasetId, 1, 1 << 20, 512, false);
    index->flush();
    for (std::uint32_t number = 0; number < 50'000; number++) index->put_block(kLargeDatasetId, 1, block(number));
    index->flush();
    const IndexStatus status = index->status();
    EXPECT_THAT(status.problem, testing::HasSubstr("MDB_MAP_FULL"));
    EXPECT_GT(status.changes_lost, 0u);
    EXPECT_TRUE(status.persisting);
    // Earlier rows remain, and freed room is used.
    EXPECT_EQ((*index->load(kLargeDatasetId)).size(), 1u);
    index->put_block(kLargeDatasetId, 1, block(1));
    index->flush();
    EXPECT_THAT(index->status().problem, IsEmpty());
    EXPECT_THAT((*index->load(kLargeDatasetId))[0].blocks, testing::Contains(block(1)));
}

TEST(Index, DropsChangesBeyondItsPendingLimit) {
    const TempDirectory directory;
    auto opened =
        Index::open({.directory = directory / "index", .commit_after_ms = 3'600'000, .pending_changes_max = 10});
    opened->index->put_segment(kLargeDatasetId, 1, 1 << 20, 512, false);
    for (std::uint32_t number = 0; number < 20; number++) opened->index->put_block(kLargeDatasetId, 1, block(number));
    EXPECT_EQ(opened->index->status().changes_lost, 11u);
    opened->index->flush();
    EXPECT_EQ((*opened->index->load(kLargeDatasetId))[0].blocks.size(), 9u);
}

TEST(Index, OpenErrorNamesTheMissingDirectory) {
    const TempDirectory directory;
    const auto opened = Index::open({.directory = directory / "no/such/parent"});
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ErrorCode::not_found);
    EXPECT_THAT(opened.error().message, testing::HasSubstr("no/such/parent"));
}

// Runs with LMDB (true) and with no storage behind the index (false).
class EveryIndex : public testing::TestWithParam<bool> {
protected:
    TempDirectory directory_;
    std::unique_ptr<Index> index_ = open_index(GetParam() ? directory_ / "index" : "");
};

TEST_P(EveryIndex, AllocatesIdsAndAcceptsChanges) {
    const std::uint32_t first = index_->allocate_segment_id();
    EXPECT_GT(first, 0u);
    EXPECT_EQ(index_->allocate_segment_id(), first + 1);
    index_->reserve_segment_ids_below(100);
    EXPECT_EQ(index_->allocate_segment_id(), 100u);
    index_->put_segment(kLargeDatasetId, 1, 1 << 20, 512, false);
    index_->put_block(kLargeDatasetId, 1, block(1));
    index_->remove_block(kLargeDatasetId, 1, 64);
    index_->remove_segment(kLargeDatasetId, 1);
    index_->remove_dataset(kLargeDatasetId);
    index_->flush();
    EXPECT_THAT(*index_->load(kLargeDatasetId), IsEmpty());
    EXPECT_THAT(index_->status().problem, IsEmpty());
    EXPECT_EQ(index_->status().persisting, GetParam());
}

INSTANTIATE_TEST_SUITE_P(LmdbAndNone, EveryIndex, testing::Bool());

}  // namespace
}  // namespace larder::cache
