#include "loader/client_block_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>

namespace larder::detail {
namespace {

TEST(ClientBlockTable, RepeatedAcquireReturnsTheSameEntry) {
    ClientBlockTable table;
    const auto first = table.acquire(7);
    const auto second = table.acquire(7);
    const auto other = table.acquire(8);
    EXPECT_TRUE(first.fresh);
    EXPECT_FALSE(second.fresh);
    EXPECT_EQ(first.tag, second.tag);
    EXPECT_NE(first.tag, other.tag);
    EXPECT_EQ(table[first.tag].references, 2u);
    EXPECT_LT(table[first.tag].order, table[other.tag].order);
}

TEST(ClientBlockTable, SecondEntryIsHiddenUntilMadeCurrent) {
    ClientBlockTable table;
    for (std::uint32_t other = 100; other < 400; ++other) table.acquire(other);
    const std::uint32_t old = table.acquire(7).tag;
    const std::uint32_t duplicate = table.acquire_duplicate(7);
    EXPECT_EQ(table.acquire(7).tag, old);
    table.make_current(duplicate);
    EXPECT_EQ(table.acquire(7).tag, duplicate);
    for (std::uint32_t other = 400; other < 1000; ++other) table.acquire(other);  // the table grows
    EXPECT_EQ(table.acquire(7).tag, duplicate);
    table[old].references = 0;
    table.erase(old);
    EXPECT_EQ(table.acquire(7).tag, duplicate);
    table[duplicate].references = 0;
    table.erase(duplicate);
    const std::uint32_t only_entry = table.acquire_duplicate(7);
    table.make_current(only_entry);
    EXPECT_EQ(table.acquire(7).tag, only_entry);
}

TEST(ClientBlockTable, MatchesAMapUnderRandomUse) {
    std::mt19937_64 random(1);
    ClientBlockTable table;
    std::map<std::uint32_t, std::uint32_t> tags;  // by block
    for (int step = 0; step < 50'000; ++step) {
        const auto block = static_cast<std::uint32_t>(random() % 3000);
        const auto known = tags.find(block);
        if (known == tags.end()) {
            const auto acquired = table.acquire(block);
            ASSERT_TRUE(acquired.fresh);
            tags[block] = acquired.tag;
        } else if (random() % 2 == 0) {
            table[known->second].references = 0;
            table.erase(known->second);
            EXPECT_FALSE(table.contains(known->second));
            tags.erase(known);
        } else {
            ASSERT_EQ(table.acquire(block).tag, known->second);
        }
    }
    for (const auto& [block, tag] : tags) {
        ASSERT_TRUE(table.contains(tag));
        ASSERT_EQ(table[tag].block, block);
    }
    EXPECT_FALSE(table.contains(table.tag_end()));
}

}  // namespace
}  // namespace larder::detail
