#include "cache/control/session_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <latch>
#include <semaphore>
#include <vector>

#include "base/huge_pages.h"
#include "cache/protocol/wire.h"

namespace larder::cache {
namespace {

constexpr std::uint64_t kSlotBytes = std::uint64_t{4} << 20;

std::size_t resident_bytes(const Mapping& mapping) {
    std::vector<unsigned char> pages(mapping.size() / protocol::kPageBytes);
    EXPECT_EQ(::mincore(mapping.data(), mapping.size(), pages.data()), 0);
    const auto resident = std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; });
    return static_cast<std::size_t>(resident) * protocol::kPageBytes;
}

TEST(SessionMemory, OnlyTheDaemonCanWriteSlots) {
    auto memory = make_session_memory(64, kSlotBytes);
    ASSERT_TRUE(memory.has_value()) << memory.error().message;
    EXPECT_EQ(memory->slots.size(), kSlotBytes);
    // A client may open its descriptor for writing again, as nothing but the seals would keep it from that.
    const auto again = open_file("/proc/self/fd/" + std::to_string(memory->client_slot_fd.get()), O_RDWR);
    ASSERT_TRUE(again.has_value());
    for (const int fd : {memory->client_slot_fd.get(), again->get()}) {
        EXPECT_FALSE(Mapping::of(fd, kSlotBytes, Mapping::Access::read_write).has_value());
        EXPECT_EQ(::pwrite(fd, "x", 1, 0), -1);
        EXPECT_EQ(::ftruncate(fd, 0), -1);
        EXPECT_EQ(::ftruncate(fd, static_cast<off_t>(2 * kSlotBytes)), -1);
        EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1) << "no seal can be added";
    }
    const auto reader = Mapping::of(memory->client_slot_fd.get(), kSlotBytes, Mapping::Access::read_only);
    ASSERT_TRUE(reader.has_value());
    memory->slots.data()[5] = std::byte{42};
    EXPECT_EQ(reader->data()[5], std::byte{42});
    EXPECT_EQ(::mprotect(reader->data(), kSlotBytes, PROT_READ | PROT_WRITE), -1);
}

TEST(SessionMemory, BothSidesCanWriteRingsOfFixedSize) {
    auto memory = make_session_memory(64, kSlotBytes);
    ASSERT_TRUE(memory.has_value()) << memory.error().message;
    EXPECT_EQ(memory->ring.size(), protocol::ring_bytes(64));
    const auto client = Mapping::of(memory->client_ring_fd.get(), memory->ring.size(), Mapping::Access::read_write);
    ASSERT_TRUE(client.has_value());
    client->data()[0] = std::byte{7};
    EXPECT_EQ(memory->ring.data()[0], std::byte{7});
    EXPECT_EQ(::ftruncate(memory->client_ring_fd.get(), 0), -1);
}

// Closes the client's descriptors and lets the keeper share the slots.
std::shared_ptr<const SlotKeeper::Slots> keep(SlotKeeper& keeper, SessionMemory memory,
                                              std::function<void()> on_released) {
    // A parameter may live until the caller's whole expression ends, which may be after the keeper's thread has looked.
    memory.client_ring_fd.reset();
    memory.client_slot_fd.reset();
    return keeper.keep(
        std::move(memory.slots), std::move(memory.slot_fd), std::move(memory.ring_fd), [] {}, std::move(on_released));
}

TEST(SessionMemory, IsReleasedOnceNoProcessHasItOpenOrMapped) {
    auto memory = make_session_memory(64, kSlotBytes);
    ASSERT_TRUE(memory.has_value()) << memory.error().message;
    EXPECT_FALSE(is_released(memory->slot_fd));
    EXPECT_FALSE(is_released(memory->ring_fd));
    {
        const auto slots = Mapping::of(memory->client_slot_fd.get(), kSlotBytes, Mapping::Access::read_only);
        const auto ring = Mapping::of(memory->client_ring_fd.get(), memory->ring.size(), Mapping::Access::read_write);
        ASSERT_TRUE(slots && ring);
        memory->client_slot_fd.reset();
        memory->client_ring_fd.reset();
        EXPECT_FALSE(is_released(memory->slot_fd)) << "mapped, though no descriptor is left";
        EXPECT_FALSE(is_released(memory->ring_fd));
    }
    EXPECT_TRUE(is_released(memory->slot_fd)) << "the daemon's own mapping does not count";
    EXPECT_TRUE(is_released(memory->ring_fd));
}

// Records the progress that a keeper reports.
struct PopulateProgress {
    void operator()(std::uint64_t bytes, bool settled) {
        populated_bytes = bytes;
        ++pieces;
        if (settled) now_settled.release();
    }
    std::atomic<std::uint64_t> populated_bytes = 0;
    std::atomic<int> pieces = 0;
    std::counting_semaphore<> now_settled{0};
};

TEST(SlotKeeper, PopulatesOnlyTheRequestedBytes) {
    PopulateProgress progress;
    SlotKeeper keeper;
    auto memory = make_session_memory(64, kSlotBytes);
    ASSERT_TRUE(memory.has_value());
    const auto slots = keep(keeper, std::move(*memory), [] {});
    const auto populate = keeper.populator(slots, std::ref(progress));
    EXPECT_EQ(resident_bytes(slots->mapping), 0u);
    populate(kHugePageBytes);
    progress.now_settled.acquire();
    EXPECT_EQ(progress.populated_bytes, kHugePageBytes);
    EXPECT_EQ(resident_bytes(slots->mapping), kHugePageBytes);
    populate(10 * kSlotBytes);
    progress.now_settled.acquire();
    EXPECT_EQ(progress.populated_bytes, kSlotBytes);
    EXPECT_EQ(resident_bytes(slots->mapping), kSlotBytes);
    EXPECT_EQ(progress.pieces, 2) << "one for each huge page";
}

TEST(SlotKeeper, PopulatesSlotsSmallerThanAHugePage) {
    PopulateProgress progress;
    SlotKeeper keeper;
    auto memory = make_session_memory(64, 3 * protocol::kPageBytes);
    ASSERT_TRUE(memory.has_value());
    const auto slots = keep(keeper, std::move(*memory), [] {});
    keeper.populator(slots, std::ref(progress))(protocol::kPageBytes);
    progress.now_settled.acquire();
    EXPECT_EQ(progress.populated_bytes, 3 * protocol::kPageBytes);
    EXPECT_EQ(resident_bytes(slots->mapping), 3 * protocol::kPageBytes);
}

TEST(SlotKeeper, CallsBackWhenTheLastHolderIsGone) {
    std::promise<void> ended;
    SlotKeeper keeper;
    auto memory = make_session_memory(64, kSlotBytes);
    ASSERT_TRUE(memory.has_value());
    auto first = keep(keeper, std::move(*memory), [&] { ended.set_value(); });
    auto second = first;
    first.reset();
    auto waiting = ended.get_future();
    EXPECT_EQ(waiting.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
    second.reset();
    waiting.wait();
}

TEST(SlotKeeper, CallsBackOnceTheClientHasReleasedTheMemory) {
    for (FileDescriptor SessionMemory::* const held :
         {&SessionMemory::client_slot_fd, &SessionMemory::client_ring_fd}) {
        std::promise<void> released;
        auto waiting = released.get_future();
        SlotKeeper keeper;
        auto memory = make_session_memory(64, kSlotBytes);
        ASSERT_TRUE(memory.has_value());
        FileDescriptor client = std::move((*memory).*held);
        keep(keeper, std::move(*memory), [&] { released.set_value(); }).reset();
        std::promise<void> searched;
        for (int i = 0; i < 2; ++i) keeper.find_released();
        keep(keeper, *make_session_memory(64, protocol::kPageBytes), [&] { searched.set_value(); }).reset();
        searched.get_future().wait();
        EXPECT_EQ(waiting.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
        client.reset();
        keeper.find_released();
        waiting.wait();
    }
}

TEST(SlotKeeper, DoesNotPopulateAfterTheSessionEnded) {
    std::latch busy(1);
    bool called = false;
    {
        SlotKeeper keeper;
        // Holds the keeper's thread until the session has ended.
        auto blocker = make_session_memory(64, protocol::kPageBytes);
        ASSERT_TRUE(blocker.has_value());
        keep(keeper, std::move(*blocker), [&] { busy.wait(); }).reset();
        auto memory = make_session_memory(64, kSlotBytes);
        ASSERT_TRUE(memory.has_value());
        auto slots = keep(keeper, std::move(*memory), [] {});
        keeper.populator(slots, [&](std::uint64_t, bool) { called = true; })(kSlotBytes);
        slots.reset();
        busy.count_down();
    }
    EXPECT_FALSE(called);
}

}  // namespace
}  // namespace larder::cache
