// Compares the order of indices by key with a stable sort, and finds a duplicate among thousands of names.

#include "allocator/sorted_indices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/sort_few.h"
#include "base/hash.h"
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

TEST(Order, IsByKeyAndThenByIndex) {
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

TEST(Order, IntegersAreOrderedByAllBits) {
    std::mt19937_64 random(2);
    for (const std::size_t count : {1, 2, 7, 100, 5000}) {
        std::vector<std::uint64_t> keys(count);
        // Some keys differ in their lowest bits only, and some are equal.
        for (std::uint64_t& key : keys) key = random() % 4 == 0 ? (std::uint64_t{1} << 63) + random() % 3 : random();
        std::vector<std::uint32_t> expected(count);
        std::iota(expected.begin(), expected.end(), 0u);
        std::ranges::stable_sort(expected, {}, [&](std::uint32_t i) { return keys[i]; });
        EXPECT_EQ(ascending(keys), expected);
    }
}

TEST(SortFew, KeepsOrderOfEqualKeysAtAnyLength) {
    struct Thing {
        double key;
        std::uint32_t number;
        bool operator==(const Thing&) const = default;
    };
    const auto key = [](const Thing& thing) { return thing.key; };
    std::mt19937_64 random(3);
    for (int round = 0; round < 3000; ++round) {
        std::vector<Thing> things(random() % 50);
        for (std::uint32_t i = 0; i < things.size(); ++i) things[i] = {static_cast<double>(random() % 12) - 6, i};
        std::vector<Thing> expected = things;
        std::ranges::stable_sort(expected, {}, key);
        sort_few(std::span(things), key);
        ASSERT_EQ(things, expected);
        // Sorts equal keys by number, the largest first.
        std::ranges::sort(expected, [](const Thing& a, const Thing& b) {
            return a.key != b.key ? a.key < b.key : a.number > b.number;
        });
        sort_equal(std::span(things), key, [](const Thing& a, const Thing& b) { return a.number > b.number; });
        ASSERT_EQ(things, expected);
    }
}

TEST(Names, HashCoversEveryByteAndReadsNoFurther) {
    const auto reference_hash = [](std::string_view name) {
        std::uint64_t hash = name.size();
        do {
            std::uint64_t word = 0;
            const std::size_t count = std::min<std::size_t>(name.size(), sizeof word);
            if (count > 0) std::memcpy(&word, name.data(), count);
            hash = mix64(hash ^ word);
            name.remove_prefix(count);
        } while (!name.empty());
        return hash;
    };
    const std::string text = "abcdefghijklmnopqrstuvwxyz\xff\x80";
    for (std::size_t begin = 0; begin < 3; ++begin) {
        for (std::size_t size = 0; begin + size <= text.size(); ++size) {
            // The buffer is on the heap and exactly this long, so that sanitizers detect a read past its end.
            const std::vector<char> bytes(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                          text.begin() + static_cast<std::ptrdiff_t>(begin + size));
            const std::string_view name(bytes.data(), bytes.size());
            EXPECT_EQ(hash_name(name), reference_hash(name)) << name;
        }
    }
}

TEST(Names, DuplicateIsFoundAmongThousands) {
    ClusterState state = cluster(1, 100);
    add_dataset(state, "A", 100);
    for (int j = 0; j < 5000; ++j) add_job(state, ("job-of-a-longer-name-" + std::to_string(j)).c_str(), 0, 1);
    state.nodes[0].gpus = 5000;
    EXPECT_TRUE(validate(state));
    state.jobs[4321].name = state.jobs[77].name;
    const auto refused = validate(state);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "jobs[4321].name: \"job-of-a-longer-name-77\" appears twice");
}

}  // namespace
}  // namespace larder::test
