#include "allocator/index_lists.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace larder::allocator {
namespace {

TEST(IndexLists, ListEachOwnersIndicesInTheOrderGiven) {
    std::mt19937_64 random(3);
    for (int round = 0; round < 300; ++round) {
        const std::size_t owners = random() % 10;
        std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs(owners == 0 ? 0 : random() % 40);
        std::vector<std::vector<std::uint32_t>> expected(owners);
        for (auto& [owner, index] : pairs) {
            owner = static_cast<std::uint32_t>(random() % owners);
            index = static_cast<std::uint32_t>(random() % 100);
            expected[owner].push_back(index);
        }
        const IndexLists lists(owners, [&](auto add) {
            for (const auto& [owner, index] : pairs) add(owner, index);
        });
        for (std::uint32_t owner = 0; owner < owners; ++owner) {
            const auto list = lists.of(owner);
            ASSERT_EQ(std::vector<std::uint32_t>(list.begin(), list.end()), expected[owner]) << "round " << round;
        }
    }
}

}  // namespace
}  // namespace larder::allocator
