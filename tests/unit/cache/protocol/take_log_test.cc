#include "cache/protocol/take_log.h"

#include <gtest/gtest.h>

#include <memory>

namespace larder::protocol {
namespace {

constexpr std::int64_t kSlot_ns = std::int64_t{1} << TakeLog::kSlotBits;

TEST(TakeLog, WaitsOfOneSlotShareAnEntryThatIsAsLongAsAllOfThem) {
    TakeLog log{};
    log.add(kSlot_ns + 10, kSlot_ns + 20);
    log.add(kSlot_ns + 100, kSlot_ns + 100);
    log.add(kSlot_ns + 200, kSlot_ns + 205);
    log.add(2 * kSlot_ns, 5 * kSlot_ns);
    log.add(5 * kSlot_ns, 5 * kSlot_ns + 1);
    EXPECT_EQ(log.count, 3u);
    EXPECT_EQ(log.entries[0].begin_ns, kSlot_ns + 10);
    EXPECT_EQ(log.entries[0].end_ns, kSlot_ns + 25);
    EXPECT_EQ(log.entries[1].begin_ns, 2 * kSlot_ns);
    EXPECT_EQ(log.entries[1].end_ns, 5 * kSlot_ns);
    EXPECT_EQ(log.entries[2].end_ns, 5 * kSlot_ns + 1);
}

TEST(TakeLog, CopyHasTheEntriesThatTheLogStillHas) {
    const auto log = std::make_unique<TakeLog>();
    const auto copy = std::make_unique<TakeLog>();
    std::uint64_t next = 0;
    for (std::int64_t slot = 1; slot <= 1000; ++slot) {
        log->add(slot * kSlot_ns, slot * kSlot_ns + slot);
        if (slot % 300 == 0 || slot == 1000) next = copy->copy_from(*log, next);
    }
    EXPECT_EQ(next, 999u);
    EXPECT_EQ(copy->count, 1000u);
    for (std::uint64_t number = 1000 - TakeLog::kEntries; number < 1000; ++number) {
        const TakeLog::Entry& entry = copy->entries[number % TakeLog::kEntries];
        const auto slot = static_cast<std::int64_t>(number) + 1;
        EXPECT_EQ(entry.begin_ns, slot * kSlot_ns);
        EXPECT_EQ(entry.end_ns, slot * kSlot_ns + slot);
    }
}

}  // namespace
}  // namespace larder::protocol
