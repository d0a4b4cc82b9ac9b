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

TEST_F(SlotBudgetTest, OneSampleBlocksNeedRoomForTwoBatches) {
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

TEST_F(SlotBudgetTest, ManySampleBlocksNeedRoomForTheirWindow) {
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

TEST_F(SlotBudgetTest, PlanStaysWithinTheBudget) {
    const auto manifest = files(100, 10'000);
    const SlotNeeds needs{.batch_size = 8, .window_blocks = 1};
    const std::uint64_t needed = needed_slot_bytes(manifest, needs);
    const auto small = plan_slots(manifest, needs, needed - 1);
    ASSERT_FALSE(small.has_value());
    EXPECT_EQ(small.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(small.error().message.find("batch_size"), std::string::npos);
    for (const std::uint64_t more : {0, 1, 4096, 100'000, 10'000'000}) {
        const auto plan = plan_slots(manifest, needs, needed + more);
        ASSERT_TRUE(plan.has_value());
        EXPECT_LE(plan->slot_bytes, needed + more);
        EXPECT_EQ(plan->slab_bytes % protocol::kPageBytes, 0u);
        EXPECT_EQ(plan->slot_bytes % plan->slab_bytes, 0u);
    }
    EXPECT_LT(plan_slots(manifest, needs, std::uint64_t{1} << 40)->slot_bytes, 4'000'000u)
        << "no more than a small dataset can use";
}

TEST_F(SlotBudgetTest, SlabHoldsTheLargestBatch) {
    const auto manifest = files(100, 10'000);
    const std::uint64_t run_bytes = 3 * std::uint64_t{protocol::kPageBytes};
    const SlotNeeds needs{.batch_size = 8, .window_blocks = 1};
    for (const std::uint64_t held : {0, 1, 5}) {
        const std::uint64_t budget = std::max((held + 2) * 8 * run_bytes, needed_slot_bytes(manifest, needs));
        const auto plan = plan_slots(manifest, needs, budget);
        ASSERT_TRUE(plan.has_value());
        EXPECT_GE(plan->slab_bytes, 8 * run_bytes);
        EXPECT_GE(plan->slot_bytes / plan->slab_bytes, held + 1);
    }
}

TEST_F(SlotBudgetTest, WithoutABudgetThePlanFollowsTheNeed) {
    const auto manifest = files(20, 10'000);
    const std::uint64_t everything = 20 * 3 * std::uint64_t{protocol::kPageBytes};
    const auto plan = plan_slots(manifest, {.batch_size = 4}, 0);
    ASSERT_TRUE(plan.has_value());
    EXPECT_GE(plan->slot_bytes, everything) << "all a small dataset can use";
    EXPECT_LE(plan->slot_bytes, 3 * everything);
}

}  // namespace
}  // namespace larder::detail
