#include "loader/slot_ring.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace larder::detail {
namespace {

TEST(SlotRing, GivesPagesInOrderAndWrapsAround) {
    SlotRing ring(10);
    const auto a = ring.allocate(4);
    const auto b = ring.allocate(4);
    ASSERT_TRUE(a && b);
    EXPECT_EQ(a->page, 0u);
    EXPECT_EQ(b->page, 4u);
    EXPECT_FALSE(ring.allocate(4));
    ring.release(a->id);
    const auto c = ring.allocate(4);
    ASSERT_TRUE(c);
    EXPECT_EQ(c->page, 0u);
    EXPECT_EQ(ring.used_pages(), 10u) << "the two pages at the end are passed over";
    EXPECT_FALSE(ring.allocate(1));
}

TEST(SlotRing, RoomComesBackAtTheEnds) {
    SlotRing ring(8);
    const auto a = ring.allocate(2);
    const auto b = ring.allocate(3);
    const auto c = ring.allocate(3);
    ring.release(b->id);
    EXPECT_EQ(ring.used_pages(), 8u) << "between runs in use";
    ring.release(c->id);
    EXPECT_EQ(ring.used_pages(), 2u);
    const auto d = ring.allocate(6);
    ASSERT_TRUE(d);
    EXPECT_EQ(d->page, 2u);
    ring.release(a->id);
    EXPECT_EQ(ring.used_pages(), 6u);
    ring.release(d->id);
    const auto whole = ring.allocate(8);
    ASSERT_TRUE(whole);
    EXPECT_EQ(whole->page, 0u);
    EXPECT_FALSE(ring.allocate(1));
}

TEST(SlotRing, NeverGivesAPageTwiceAndNeverLosesOne) {
    std::mt19937_64 random(1);
    for (int round = 0; round < 200; ++round) {
        const auto pages = static_cast<std::uint32_t>(1 + random() % 64);
        SlotRing ring(pages);
        struct Held {
            SlotRing::Run run;
            std::uint32_t pages;
        };
        std::vector<Held> held;
        std::vector<bool> taken(pages);
        for (int step = 0; step < 500; ++step) {
            if (random() % 2 == 0) {
                const auto count = static_cast<std::uint32_t>(1 + random() % (pages / 2 + 1));
                const auto run = ring.allocate(count);
                if (!run) continue;
                ASSERT_LE(run->page + count, pages);
                for (std::uint32_t p = run->page; p < run->page + count; ++p) {
                    ASSERT_FALSE(taken[p]);
                    taken[p] = true;
                }
                held.push_back({*run, count});
            } else if (!held.empty()) {
                const std::size_t i = random() % held.size();
                for (std::uint32_t p = 0; p < held[i].pages; ++p) taken[held[i].run.page + p] = false;
                ring.release(held[i].run.id);
                held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
            }
        }
        for (const Held& h : held) ring.release(h.run.id);
        EXPECT_EQ(ring.used_pages(), 0u);
        EXPECT_TRUE(ring.allocate(pages));
    }
}

TEST(SlotRing, HoldsManyRuns) {
    SlotRing ring(1000);
    std::vector<std::uint32_t> ids;
    for (int i = 0; i < 1000; ++i) ids.push_back(ring.allocate(1)->id);
    EXPECT_FALSE(ring.allocate(1));
    for (const std::uint32_t id : ids) ring.release(id);
    EXPECT_EQ(ring.used_pages(), 0u);
}

}  // namespace
}  // namespace larder::detail
