#include "cache/control/session_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <latch>
#include <vector>

#include "cache/protocol/wire.h"

namespace larder::cache {
namespace {

constexpr std::uint64_t kSlotBytes = std::uint64_t{4} << 20;

bool all_resident(const Mapping& mapping) {
    std::vector<unsigned char> pages(mapping.size() / protocol::kPageBytes);
    EXPECT_EQ(::mincore(mapping.data(), mapping.size(), pages.data()), 0);
    return std::ranges::all_of(pages, [](unsigned char page) { return (page & 1) != 0; });
}

TEST(SessionMemory, SlotsAreTheDaemonsToWriteOnly) {
    auto memory = make_session_memory(64, kSlotBytes);
    ASSERT_TRUE(memory.has_value()) << memory.error().message;
    EXPECT_EQ(memory->slots.size(), kSlotBytes);
    EXPECT_FALSE(Mapping::of(memory->slot_fd.get(), kSlotBytes, Mapping::Access::read_write).has_value());
    EXPECT_EQ(::pwrite(memory->slot_fd.get(), "x", 1, 0), -1);
    EXPECT_EQ(::ftruncate(memory->slot_fd.get(), 0), -1);
    EXPECT_EQ(::ftruncate(memory->slot_fd.get(), static_cast<off_t>(2 * kSlotBytes)), -1);
    EXPECT_EQ(::fcntl(memory->slot_fd.get(), F_ADD_SEALS, F_SEAL_WRITE), -1) << "seals are sealed";
    const auto reader = Mapping::of(memory->slot_fd.get(), kSlotBytes, Mapping::Access::read_only);
    ASSERT_TRUE(reader.has_value());
    memory->slots.data()[5] = std::byte{42};
    EXPECT_EQ(reader->data()[5], std::byte{42});
    EXPECT_EQ(::mprotect(reader->data(), kSlotBytes, PROT_READ | PROT_WRITE), -1);
}

TEST(SessionMemory, RingsAreBothSidesToWriteButOfFixedSize) {
    auto memory = make_session_memory(64, kSlotBytes);
    ASSERT_TRUE(memory.has_value()) << memory.error().message;
    EXPECT_EQ(memory->ring.size(), protocol::ring_bytes(64));
    const auto client = Mapping::of(memory->ring_fd.get(), memory->ring.size(), Mapping::Access::read_write);
    ASSERT_TRUE(client.has_value());
    client->data()[0] = std::byte{7};
    EXPECT_EQ(memory->ring.data()[0], std::byte{7});
    EXPECT_EQ(::ftruncate(memory->ring_fd.get(), 0), -1);
}

TEST(SlotKeeper, PopulatesAllOfASlotMemory) {
    SlotKeeper keeper;
    auto memory = make_session_memory(64, kSlotBytes);
    ASSERT_TRUE(memory.has_value());
    const auto slots = keeper.keep(std::move(memory->slots), [] {});
    EXPECT_FALSE(all_resident(*slots));
    std::promise<void> populated;
    keeper.populate(slots, std::move(memory->slot_fd), [&] { populated.set_value(); });
    populated.get_future().wait();
    EXPECT_TRUE(all_resident(*slots));
}

TEST(SlotKeeper, TellsWhenTheLastHolderHasGone) {
    std::promise<void> ended;
    SlotKeeper keeper;
    auto memory = make_session_memory(64, kSlotBytes);
    ASSERT_TRUE(memory.has_value());
    auto first = keeper.keep(std::move(memory->slots), [&] { ended.set_value(); });
    auto second = first;
    first.reset();
    auto waiting = ended.get_future();
    EXPECT_EQ(waiting.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
    second.reset();
    waiting.wait();
}

TEST(SlotKeeper, DoesNotPopulateForASessionThatHasEnded) {
    std::latch busy(1);
    bool called = false;
    {
        SlotKeeper keeper;
        // Holds the keeper's thread until the session has ended.
        auto blocker = make_session_memory(64, protocol::kPageBytes);
        ASSERT_TRUE(blocker.has_value());
        keeper.keep(std::move(blocker->slots), [&] { busy.wait(); }).reset();
        auto memory = make_session_memory(64, kSlotBytes);
        ASSERT_TRUE(memory.has_value());
        auto slots = keeper.keep(std::move(memory->slots), [] {});
        keeper.populate(slots, std::move(memory->slot_fd), [&] { called = true; });
        slots.reset();
        busy.count_down();
    }
    EXPECT_FALSE(called);
}

}  // namespace
}  // namespace larder::cache
