#include "loader/slot_slabs.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "tests/support/property_cases.h"

namespace larder::detail {
namespace {

std::vector<SlotSlabs::Run> allocate_bundle(SlotSlabs& slabs, std::initializer_list<std::uint32_t> runs) {
    std::uint32_t pages = 0;
    for (const std::uint32_t run : runs) pages += run;
    EXPECT_TRUE(slabs.begin_bundle(pages));
    std::vector<SlotSlabs::Run> allocated;
    for (const std::uint32_t run : runs) {
        const auto at = slabs.allocate(run);
        EXPECT_TRUE(at.has_value());
        if (at) allocated.push_back(*at);
    }
    return allocated;
}

TEST(SlotSlabs, BundleLiesInOneSlab) {
    SlotSlabs slabs(32, 8);
    const auto first = allocate_bundle(slabs, {3, 2});
    const auto second = allocate_bundle(slabs, {2, 2});
    EXPECT_EQ(first[0].page / 8, first[1].page / 8);
    EXPECT_EQ(second[0].page / 8, second[1].page / 8);
    EXPECT_NE(first[0].page / 8, second[0].page / 8) << "three pages are left of the first slab";
}

TEST(SlotSlabs, SmallBundlesShareASlab) {
    SlotSlabs slabs(32, 8);
    allocate_bundle(slabs, {2, 1});
    allocate_bundle(slabs, {4});
    EXPECT_EQ(slabs.occupied_pages(), 8u);
}

TEST(SlotSlabs, LastEmptiedSlabIsUsedFirst) {
    SlotSlabs slabs(800, 8);
    for (int i = 0; i < 1000; ++i) {
        const auto held = allocate_bundle(slabs, {8});
        EXPECT_EQ(held[0].page, 0u) << "memory that was never needed is never touched";
        slabs.release(held[0].id);
    }
}

TEST(SlotSlabs, GapIsUsedWhenEverySlabIsOccupied) {
    SlotSlabs slabs(16, 8);
    const auto first = allocate_bundle(slabs, {3, 5});
    allocate_bundle(slabs, {8});
    EXPECT_FALSE(slabs.begin_bundle(1));
    slabs.release(first[0].id);
    EXPECT_FALSE(slabs.begin_bundle(4));
    ASSERT_TRUE(slabs.begin_bundle(3));
    EXPECT_EQ(slabs.allocate(3)->page, first[0].page);
}

TEST(SlotSlabs, RunIsAllocatedBesideItsBundle) {
    SlotSlabs slabs(32, 8);
    const auto first = allocate_bundle(slabs, {3, 3});
    const auto second = allocate_bundle(slabs, {8});
    slabs.release(first[0].id);
    const auto again = slabs.allocate_in_slab_of(first[1].page, 3);
    ASSERT_TRUE(again.has_value());
    EXPECT_EQ(again->page / 8, first[1].page / 8);
    EXPECT_FALSE(slabs.allocate_in_slab_of(second[0].page, 1).has_value()) << "that slab is full";
    EXPECT_FALSE(slabs.allocate_in_slab_of(24, 1).has_value()) << "no bundle lies there";
}

TEST(SlotSlabs, NeverAllocatesAPageTwiceOrLosesOne) {
    std::mt19937_64 random(1);
    for (std::uint64_t round = 0; round < test::property_cases(200); ++round) {
        const auto slab_pages = static_cast<std::uint32_t>(1 + random() % 32);
        const auto slab_count = static_cast<std::uint32_t>(1 + random() % 8);
        SlotSlabs slabs(slab_pages * slab_count + static_cast<std::uint32_t>(random() % slab_pages), slab_pages);
        struct Held {
            SlotSlabs::Run run;
            std::uint32_t pages;
        };
        std::vector<Held> held;
        std::vector<bool> taken(std::size_t{slab_pages} * slab_count);
        const auto hold = [&](SlotSlabs::Run run, std::uint32_t pages) {
            ASSERT_LE(run.page + pages, taken.size());
            for (std::uint32_t page = run.page; page < run.page + pages; ++page) {
                ASSERT_FALSE(taken[page]);
                taken[page] = true;
            }
            held.push_back({run, pages});
        };
        for (int step = 0; step < 500; ++step) {
            const auto pages = static_cast<std::uint32_t>(1 + random() % slab_pages);
            if (random() % 8 == 0 && !held.empty()) {
                const auto beside = held[random() % held.size()].run.page;
                if (const auto run = slabs.allocate_in_slab_of(beside, pages)) {
                    EXPECT_EQ(run->page / slab_pages, beside / slab_pages);
                    hold(*run, pages);
                }
            } else if (random() % 2 == 0) {
                if (!slabs.begin_bundle(pages)) continue;
                for (std::uint32_t pages_left = pages; pages_left > 0;) {
                    const auto count = static_cast<std::uint32_t>(1 + random() % pages_left);
                    const auto run = slabs.allocate(count);
                    ASSERT_TRUE(run.has_value());
                    hold(*run, count);
                    pages_left -= count;
                }
            } else if (!held.empty()) {
                const std::size_t i = random() % held.size();
                for (std::uint32_t page = 0; page < held[i].pages; ++page) taken[held[i].run.page + page] = false;
                slabs.release(held[i].run.id);
                held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
            }
        }
        for (const Held& h : held) slabs.release(h.run.id);
        EXPECT_EQ(slabs.occupied_pages(), 0u);
        for (std::uint32_t slab = 0; slab < slab_count; ++slab)
            EXPECT_EQ(allocate_bundle(slabs, {slab_pages}).size(), 1u);
        EXPECT_FALSE(slabs.begin_bundle(1));
    }
}

// Releases held bundles in random order. With one slab more than held bundles, the next bundle always has room.
TEST(SlotSlabs, OneSlabMoreThanHeldBundlesIsAlwaysEnough) {
    std::mt19937_64 random(2);
    for (std::uint64_t round = 0; round < test::property_cases(200); ++round) {
        const auto slab_pages = static_cast<std::uint32_t>(2 + random() % 64);
        const std::size_t held_max = random() % 6;
        SlotSlabs slabs(slab_pages * static_cast<std::uint32_t>(held_max + 1), slab_pages);
        std::vector<std::vector<SlotSlabs::Run>> held;
        for (int step = 0; step < 1000; ++step) {
            const auto pages = static_cast<std::uint32_t>(1 + random() % slab_pages);
            ASSERT_TRUE(slabs.begin_bundle(pages)) << "round " << round << ", step " << step;
            std::vector<SlotSlabs::Run> runs;
            for (std::uint32_t pages_left = pages; pages_left > 0;) {
                const auto count = static_cast<std::uint32_t>(1 + random() % pages_left);
                const auto run = slabs.allocate(count);
                ASSERT_TRUE(run.has_value());
                runs.push_back(*run);
                pages_left -= count;
            }
            held.push_back(std::move(runs));
            while (held.size() > held_max || (!held.empty() && random() % 4 == 0)) {
                const std::size_t i = random() % held.size();
                for (const SlotSlabs::Run& run : held[i]) slabs.release(run.id);
                held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
            }
        }
    }
}

}  // namespace
}  // namespace larder::detail
