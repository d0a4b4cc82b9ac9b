#include "loader/slot_budget.h"

#include <gtest/gtest.h>

#include <string>

#include "cache/protocol/wire.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"

namespace larder::detail {
namespace {

class SlotBudgetTest : public testing::Test {
protected:
    protocol::Manifest files(std::uint32_t count, std::size_t bytes) {
        test::make_tree(directory.path() / "raw",
                        {.class_count = 1, .files_per_class = count, .bytes_min = bytes, .bytes_max = bytes});
        return test::make_manifest(directory.path() / "raw", directory / "raw.manifest");
    }
    test::TempDirectory directory;
};

TEST_F(SlotBudgetTest, OneSampleBlocksNeedTwoBatches) {
    const auto manifest = files(100, 10'000);
    const std::uint64_t page = protocol::kPageBytes;
    const std::uint64_t needed = needed_slot_bytes(manifest, {.batch_size = 8, .window_blocks = 64});
    EXPECT_GE(needed, 17 * 3 * page);  // a slot of 10,064 bytes takes three pages
    EXPECT_LE(needed, 17 * 4 * page);
    EXPECT_EQ(needed, needed_slot_bytes(manifest, {.batch_size = 8, .window_blocks = 1}));
    EXPECT_EQ(needed % page, 0u);
    EXPECT_LT(needed_slot_bytes(manifest, {.batch_size = 1000, .window_blocks = 1}), 102 * 4 * page)
        << "there are no more blocks than the dataset has";
}

TEST_F(SlotBudgetTest, ManySampleBlocksNeedTheirWindow) {
    std::filesystem::create_directories(directory.path() / "tar");
    test::write_tar(directory.path() / "tar" / "a.tar", test::TarDialect::ustar, test::make_samples(400, 3000, 1));
    const auto manifest =
        test::make_manifest(directory.path() / "tar", directory / "tar.manifest", protocol::Format::webdataset,
                            {.target = protocol::BlockTarget::bytes, .bytes = 20'000});
    ASSERT_GT(manifest.block_count(), 40u);
    const auto needed = [&](std::uint32_t window) {
        return needed_slot_bytes(manifest, {.batch_size = 2, .window_blocks = window});
    };
    EXPECT_GT(needed(20), needed(4) + 14 * 10'000);
    EXPECT_GE(needed_slot_bytes(manifest, {.batch_size = 2, .window_blocks = 4, .interleaved_ranks = 64}), needed(4))
        << "ranks that share blocks each touch more of them";
}

TEST_F(SlotBudgetTest, TheBudgetIsTheLimit) {
    const auto manifest = files(100, 10'000);
    const SlotNeeds needs{.batch_size = 8, .window_blocks = 1};
    const std::uint64_t needed = needed_slot_bytes(manifest, needs);
    const auto small = slot_bytes(manifest, needed, needed - 1, needs);
    ASSERT_FALSE(small.has_value());
    EXPECT_EQ(small.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(small.error().message.find("batch_size"), std::string::npos);
    EXPECT_EQ(slot_bytes(manifest, needed, needed, needs).value(), needed);
    const std::uint64_t more = needed + 3 * protocol::kPageBytes;
    EXPECT_EQ(slot_bytes(manifest, needed, more + 17, needs).value(), more) << "whole pages";
    EXPECT_LT(slot_bytes(manifest, needed, std::uint64_t{1} << 40, needs).value(), 4'000'000u)
        << "no more than a small dataset can use";
}

TEST_F(SlotBudgetTest, WithoutABudgetItFollowsTheNeed) {
    const auto manifest = files(20, 10'000);
    const std::uint64_t mebibyte = std::uint64_t{1} << 20;
    EXPECT_EQ(slot_bytes(manifest, 300 * mebibyte, 0, {}).value(), 300 * mebibyte) << "all a small dataset can use";
    EXPECT_EQ(slot_bytes(manifest, 1024 * mebibyte, 0, {}).value(), 1024 * mebibyte);
    EXPECT_EQ(slot_bytes(manifest, 1025 * mebibyte, 0, {}).error().code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace larder::detail
