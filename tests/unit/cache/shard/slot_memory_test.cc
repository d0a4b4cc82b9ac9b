// The kernel provides a session's slot memory as it is used. Only fetches wait for the memory behind their slots.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/unit/cache/shard/shard_fixture.h"

namespace larder::cache {
namespace {

using protocol::BlockStatus;
using test::kDisk;
using test::kMemory;
using test::kMiB;
using test::RingClient;
using test::ShardWorld;

constexpr std::uint64_t kSlotBytes = 64 * kMiB;
constexpr std::uint32_t kPagesPerMiB = kMiB / protocol::kPageBytes;

class SlotMemory : public testing::Test {
protected:
    RingClient& attach(ShardWorld& world, std::uint64_t session_id = 7) {
        return world.attach({.session_id = session_id,
                             .slot_bytes = kSlotBytes,
                             .populate_slots = [this](std::uint64_t bytes) { requested_bytes.push_back(bytes); }});
    }

    std::vector<std::uint64_t> requested_bytes;
};

TEST_F(SlotMemory, NoMemoryIsRequestedBeforeTheFirstFetch) {
    ShardWorld world({.quota = kDisk});
    attach(world);
    world.turns(5);
    EXPECT_TRUE(requested_bytes.empty());
}

TEST_F(SlotMemory, FetchWaitsForMemoryBehindItsSlot) {
    ShardWorld world({.quota = kDisk});
    RingClient& client = attach(world);
    client.fetch(3, 0, 3);
    world.turns(50);
    EXPECT_FALSE(client.next_completion().has_value());
    ASSERT_EQ(requested_bytes.size(), 1u);
    EXPECT_EQ(requested_bytes[0], 2 * kMiB) << "whole huge pages";
    world.shard->slots_populated(7, requested_bytes[0], true);
    const auto completion = world.completion(client);
    ASSERT_TRUE(completion.has_value());
    EXPECT_EQ(completion->status, BlockStatus::ok);
    EXPECT_EQ(client.payload(*completion), world.content[3]);
}

TEST_F(SlotMemory, FetchResumesOnceItsOwnPagesArePopulated) {
    ShardWorld world({.quota = kDisk});
    RingClient& client = attach(world);
    client.fetch(3, 0, 3);
    client.fetch(4, 5 * kPagesPerMiB, 4);
    world.turns(5);
    ASSERT_EQ(requested_bytes.size(), 2u);
    EXPECT_EQ(requested_bytes[1], 6 * kMiB);
    world.shard->slots_populated(7, 2 * kMiB, false);
    const auto first = world.completion(client);
    ASSERT_TRUE(first.has_value());
    EXPECT_EQ(first->tag, 3u);
    world.turns(50);
    EXPECT_FALSE(client.next_completion().has_value());
    world.shard->slots_populated(7, 6 * kMiB, true);
    const auto second = world.completion(client);
    ASSERT_TRUE(second.has_value());
    EXPECT_EQ(client.payload(*second), world.content[4]);
}

TEST_F(SlotMemory, MemoryHitNeedsNoSlotMemory) {
    ShardWorld world({.quota = kMemory});
    RingClient& other = world.attach({.session_id = 1});
    EXPECT_EQ(world.read(other, 3).status, BlockStatus::ok);
    RingClient& client = attach(world);
    EXPECT_EQ(world.read(client, 3).bytes, world.content[3]);
    EXPECT_TRUE(requested_bytes.empty());
}

TEST_F(SlotMemory, MemoryIsRequestedInGrowingSteps) {
    ShardWorld world({.quota = kDisk});
    RingClient& client = attach(world);
    // Each fetch ends one page after the previous one.
    for (std::uint32_t page = 0; page + 8 <= kSlotBytes / protocol::kPageBytes; ++page) {
        client.fetch(3, page, page);
        world.turns(3);
        if (!requested_bytes.empty()) world.shard->slots_populated(7, requested_bytes.back(), true);
        ASSERT_TRUE(world.completion(client).has_value()) << page;
        client.release(page);
    }
    EXPECT_EQ(requested_bytes.back(), kSlotBytes);
    EXPECT_LE(requested_bytes.size(), 20u);
    for (std::size_t i = 1; i < requested_bytes.size(); ++i) {
        EXPECT_LE(requested_bytes[i], requested_bytes[i - 1] + requested_bytes[i - 1] / 4 + 2 * kMiB) << "step " << i;
    }
}

TEST_F(SlotMemory, SettledMemoryIsGivenToTheDeviceOnceAndWithoutGaps) {
    ShardWorld world({.quota = kDisk});
    attach(world);
    ASSERT_TRUE(world.device->buffers().empty());
    world.shard->slots_populated(7, 2 * kMiB, true);
    world.shard->slots_populated(7, 2 * kMiB, true);
    world.shard->slots_populated(7, 4 * kMiB, false);
    world.shard->slots_populated(7, 6 * kMiB, true);
    const auto& buffers = world.device->buffers();
    ASSERT_EQ(buffers.size(), 2u);
    EXPECT_EQ(buffers[0].size(), 2 * kMiB);
    EXPECT_EQ(buffers[1].size(), 4 * kMiB);
    EXPECT_EQ(buffers[1].data(), buffers[0].data() + buffers[0].size());
}

TEST_F(SlotMemory, SessionEndingWhileAFetchWaitsIsCleanedUp) {
    ShardWorld world({.quota = kDisk});
    RingClient& client = attach(world);
    client.fetch(3, 0, 3);
    world.turns(5);
    client.close_socket();
    world.turns(20);
    EXPECT_TRUE(world.shard->statistics().datasets[0].sessions == 0);
    world.shard->slots_populated(7, requested_bytes.at(0), true);
    RingClient& next = world.attach({.session_id = 8});
    EXPECT_EQ(world.read(next, 3).bytes, world.content[3]);
}

}  // namespace
}  // namespace larder::cache
