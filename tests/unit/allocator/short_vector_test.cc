#include "allocator/short_vector.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace larder::allocator {
namespace {

using Short = ShortVector<std::uint32_t, 2>;

std::vector<std::uint32_t> elements_of(const Short& list) {
    return {list.begin(), list.end()};
}

TEST(ShortVector, HoldsWhatVectorHoldsAfterRandomChanges) {
    std::mt19937_64 random(7);
    std::vector<Short> lists(4);
    std::vector<std::vector<std::uint32_t>> expected(lists.size());
    for (std::uint32_t step = 0; step < 50'000; ++step) {
        const std::size_t a = random() % lists.size();
        const std::size_t b = random() % lists.size();
        switch (random() % 8) {
            case 0:
            case 1:
            case 2:
                lists[a].push_back(step);
                expected[a].push_back(step);
                break;
            case 3:
                if (expected[a].empty()) break;
                lists[a].pop_back();
                expected[a].pop_back();
                break;
            case 4:
                lists[a] = std::as_const(lists[b]);  // a may be b
                expected[a] = std::as_const(expected[b]);
                break;
            case 5:
                if (a == b) break;
                lists[a] = std::move(lists[b]);
                expected[a] = std::exchange(expected[b], {});
                break;
            case 6:
                lists[a].assign(random() % 4, step);
                expected[a].assign(lists[a].size(), step);
                break;
            default:
                if (expected[a].empty()) break;
                lists[a].push_back(lists[a].front());
                expected[a].push_back(expected[a].front());
        }
        ASSERT_EQ(elements_of(lists[a]), expected[a]) << "step " << step;
        ASSERT_EQ(elements_of(lists[b]), expected[b]) << "step " << step;
        ASSERT_EQ(lists[a] == lists[b], expected[a] == expected[b]) << "step " << step;
    }
}

}  // namespace
}  // namespace larder::allocator
