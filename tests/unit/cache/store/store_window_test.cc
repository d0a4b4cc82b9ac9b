// The shared window: memory for blocks that have no room in the cache, and that several jobs are about to read.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/unit/cache/store/store_fixture.h"

namespace larder::cache {
namespace {

using test::kMiB;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::uint32_t kWindowBlockBytes = 100'000;
constexpr std::uint64_t kRecordBytes = protocol::record_bytes(kWindowBlockBytes, kMemoryAlignment);

// Every segment of the window holds one block.
class StoreWindow : public testing::Test, public test::StoreFixture {
protected:
    StoreWindow() : StoreFixture(1000, kWindowBlockBytes) { store->set_window(8 * kRecordBytes, observer()); }

    DatasetStore::DropObserver observer() {
        return {.unread_blocks =
                    [this](const Segment& segment) {
                        std::uint64_t unread = 0;
                        for (const std::uint32_t id : segment.block_ids()) unread += !read_by_all_.contains(id);
                        return unread;
                    },
                .dropping =
                    [this](const Segment& segment) {
                        EXPECT_TRUE(segment.in_window());
                        dropped_.insert(dropped_.end(), segment.block_ids().begin(), segment.block_ids().end());
                    },
                .forgetting = {}};
    }
    std::optional<Reservation> reserve(std::uint32_t id) {
        return store->reserve_in_window(id, kWindowBlockBytes, observer());
    }
    bool commit(const Reservation& room) {
        test::fill_payload(store->payload(room), room.block_id);
        return store->commit(room, crc32c(store->payload(room)));
    }
    void put(std::uint32_t from, std::uint32_t to) {
        for (std::uint32_t id = from; id < to; ++id) {
            const auto room = reserve(id);
            ASSERT_TRUE(room && commit(*room)) << id;
            store->check_invariants();
        }
    }
    bool is_in_window(std::uint32_t id) const { return holds(id, kWindowBlockBytes) && !store->is_cached(id); }

    std::set<std::uint32_t> read_by_all_;
    std::vector<std::uint32_t> dropped_;
};

TEST_F(StoreWindow, IsNoPartOfTheCache) {
    store->set_quota({.memory_bytes = 3 * kRecordBytes, .disk_bytes = 0}, {});
    put(0, 2);
    EXPECT_TRUE(is_in_window(0) && is_in_window(1));
    StoreUsage usage = store->usage();
    EXPECT_EQ(usage.blocks + usage.memory_bytes + usage.payload_bytes + usage.record_bytes, 0u);
    EXPECT_EQ(usage.memory_segments + usage.memory_allocated_bytes, 0u);
    EXPECT_EQ(usage.window_blocks, 2u);
    EXPECT_EQ(usage.window_bytes, 2 * kRecordBytes);
    EXPECT_EQ(store->reserve(Tier::memory, 0, kWindowBlockBytes).error(), Refusal::already_cached);
    EXPECT_FALSE(reserve(0)) << "it is there";
    for (std::uint32_t id = 10; id < 13; ++id) EXPECT_TRUE(admit_to_memory(id, kWindowBlockBytes));
    EXPECT_FALSE(admit_to_memory(13, kWindowBlockBytes));
    EXPECT_FALSE(reserve(10)) << "it is cached";
    usage = store->usage();
    EXPECT_EQ(usage.blocks, 3u);
    EXPECT_EQ(usage.memory_bytes, 3 * kRecordBytes);
    EXPECT_EQ(usage.window_blocks, 2u);
    store->set_quota({}, {});
    EXPECT_TRUE(is_in_window(0) && is_in_window(1));
    store->forget(0);
    EXPECT_FALSE(store->find(0));
    EXPECT_EQ(store->usage().window_blocks, 1u);
    store->check_invariants();
}

TEST_F(StoreWindow, BlocksThatAllHaveReadMakeWayFirstThenTheOldest) {
    put(0, 8);
    EXPECT_THAT(dropped_, IsEmpty());
    read_by_all_ = {5};
    put(8, 9);
    EXPECT_THAT(dropped_, ElementsAre(5));
    put(9, 11);
    EXPECT_THAT(dropped_, ElementsAre(5, 0, 1));
    read_by_all_ = {9};
    put(11, 13);
    EXPECT_THAT(dropped_, ElementsAre(5, 0, 1, 9, 2));
    EXPECT_EQ(store->usage().window_blocks, 8u);
}

TEST_F(StoreWindow, KeepsSegmentsThatAreBeingFilled) {
    std::vector<Reservation> filling;
    for (std::uint32_t id = 0; id < 8; ++id) filling.push_back(*reserve(id));
    EXPECT_FALSE(reserve(8)) << "all of the window is being filled";
    EXPECT_TRUE(commit(filling[3]));
    ASSERT_TRUE(reserve(8));
    EXPECT_THAT(dropped_, ElementsAre(3));
    EXPECT_FALSE(reserve(9));
    store->abandon(filling[5]);
    ASSERT_TRUE(reserve(9));
    EXPECT_THAT(dropped_, ElementsAre(3)) << "the room that was given back is used";
    store->check_invariants();
}

TEST_F(StoreWindow, SmallWindowDropsNothingForALargeBlock) {
    store->set_window(kRecordBytes - 1, observer());
    EXPECT_FALSE(reserve(0));
    const auto small = store->reserve_in_window(1, 1000, observer());
    ASSERT_TRUE(small && commit(*small));
    EXPECT_FALSE(reserve(0));
    EXPECT_THAT(dropped_, IsEmpty());
    store->set_window(0, observer());
    EXPECT_FALSE(store->reserve_in_window(2, 0, observer())) << "a record has a header";
    EXPECT_THAT(dropped_, ElementsAre(1));
}

TEST_F(StoreWindow, ShrinksToItsBytes) {
    put(0, 8);
    store->set_window(3 * kRecordBytes, observer());
    EXPECT_THAT(dropped_, ElementsAre(0, 1, 2, 3, 4));
    store->check_invariants();
    put(8, 9);
    EXPECT_EQ(store->usage().window_blocks, 3u);
}

TEST_F(StoreWindow, WithoutBytesItIsEmptyAtOnce) {
    put(0, 2);
    const Reservation filling = *reserve(2);
    const Reservation given_back = *reserve(3);
    store->abandon(given_back);
    const Segment* const read = store->find(1)->segment;
    store->add_reference(*read);
    store->set_window(0, observer());
    EXPECT_THAT(dropped_, ElementsAre(0, 1));
    StoreUsage usage = store->usage();
    EXPECT_EQ(usage.window_blocks + usage.window_bytes + usage.window_allocated_bytes, 0u);
    EXPECT_EQ(usage.draining_segments, 2u) << "one is read, one is filled";
    store->check_invariants();
    EXPECT_FALSE(commit(filling));
    EXPECT_FALSE(store->find(2));
    store->drop_reference(*read);
    EXPECT_EQ(store->usage().draining_segments, 0u);
    store->set_quota({.memory_bytes = 4 * kMiB, .disk_bytes = 0}, {});
    for (std::uint32_t id = 0; id < 4; ++id) EXPECT_TRUE(admit_to_memory(id, kWindowBlockBytes));
    store->check_invariants();
}

TEST_F(StoreWindow, WithoutBytesNoEmptySegmentStays) {
    store->abandon(*reserve(0));
    EXPECT_GT(store->usage().window_allocated_bytes, 0u);
    store->set_window(0, observer());
    EXPECT_EQ(store->usage().window_allocated_bytes, 0u);
}

}  // namespace
}  // namespace larder::cache
