// Indices in the order of their keys, beside what a stable sort says; and names that are there twice among thousands.

#include "allocator/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/allocator/by_hand.h"

namespace larder::test {
namespace {

using namespace allocator;

void expect_sorted(const std::vector<double>& keys) {
    std::vector<std::uint32_t> expected(keys.size());
    std::iota(expected.begin(), expected.end(), 0u);
    std::ranges::stable_sort(expected, {}, [&](std::uint32_t i) { return keys[i]; });
    EXPECT_EQ(ascending(keys), expected);
    std::iota(expected.begin(), expected.end(), 0u);
    std::ranges::stable_sort(expected, std::ranges::greater(), [&](std::uint32_t i) { return keys[i]; });
    EXPECT_EQ(descending(keys), expected);
}

TEST(Order, IsThatOfTheKeysAndThenOfTheIndices) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    expect_sorted({});
    expect_sorted({1});
    expect_sorted({2, 2, 1, 2, 1});
    expect_sorted({0.0, -0.0, 0.0, 1, -1, -0.0});
    expect_sorted({kInfinity, 1, -kInfinity, kInfinity, 1e300, 5e-324, -5e-324, 0});
    std::mt19937_64 random(1);
    const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
    for (const std::size_t count : {2, 17, 100, 1000, 5000}) {
        std::vector<double> even(count), uneven(count), few(count), mixed(count);
        for (std::size_t i = 0; i < count; ++i) {
            even[i] = uniform();
            uneven[i] = std::exp(1000 * uniform() - 500);
            few[i] = static_cast<double>(random() % 5);
            mixed[i] = random() % 3 == 0 ? kInfinity : uniform() - 0.5;
        }
        for (const auto& keys : {even, uneven, few, mixed}) expect_sorted(keys);
    }
}

TEST(Names, OneThatIsThereTwiceIsFoundAmongThousands) {
    ClusterState state = cluster(1, 100);
    add_dataset(state, "A", 100);
    for (int j = 0; j < 5000; ++j) add_job(state, ("job-of-a-longer-name-" + std::to_string(j)).c_str(), 0, 1);
    state.nodes[0].gpus = 5000;
    EXPECT_TRUE(validate(state));
    state.jobs[4321].name = state.jobs[77].name;
    const auto refused = validate(state);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "jobs[4321].name: \"job-of-a-longer-name-77\" is there twice");
}

}  // namespace
}  // namespace larder::test
