#include "loader/delivered_samples.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <utility>

#include "tests/support/property_cases.h"

namespace larder::detail {
namespace {

// Blocks of 0 to 80 samples; block b has the same size in every set.
std::uint64_t size_of(std::uint32_t block) {
    return block % 4 == 0 ? 1 : block * 7 % 81;
}

struct Model {
    explicit Model(std::uint32_t block_count) : set(block_count) {}

    // Adds a random block or sample to the set and to its model.
    void add_one(std::mt19937_64& random) {
        const auto block = static_cast<std::uint32_t>(random() % set.block_count());
        if (size_of(block) == 0) return;
        if (random() % 20 == 0) {
            set.add_block(block);
            for (std::uint64_t sample = 0; sample < size_of(block); ++sample) samples.insert({block, sample});
            return;
        }
        const std::uint64_t sample = random() % size_of(block);
        set.add(block, sample, size_of(block));
        samples.insert({block, sample});
    }

    void check(const DeliveredSamples& other) const {
        for (std::uint32_t block = 0; block < other.block_count(); ++block) {
            std::uint64_t count = 0;
            for (std::uint64_t sample = 0; sample < size_of(block); ++sample) {
                ASSERT_EQ(other.has(block, sample), samples.contains({block, sample})) << block << " " << sample;
                count += other.has(block, sample);
            }
            ASSERT_EQ(other.count(block, size_of(block)), count);
            ASSERT_TRUE(size_of(block) == 0 || other.is_whole(block) == (count == size_of(block)));
        }
    }

    DeliveredSamples set;
    std::set<std::pair<std::uint32_t, std::uint64_t>> samples;
};

Model random_model(std::mt19937_64& random, std::uint32_t block_count, std::uint64_t additions) {
    Model model(block_count);
    for (std::uint64_t i = 0; i < additions; ++i) model.add_one(random);
    return model;
}

TEST(DeliveredSamples, HasWhatWasAddedAfterMergeAndThroughBytes) {
    std::mt19937_64 random(1);
    for (std::uint64_t round = 0; round < test::property_cases(300); ++round) {
        const auto blocks = static_cast<std::uint32_t>(1 + random() % 90);
        Model model = random_model(random, blocks, random() % 3000);
        model.check(model.set);
        const Model other = random_model(random, blocks, random() % 3000);
        DeliveredSamples merged = model.set;
        merged.merge(other.set);
        DeliveredSamples other_way = other.set;
        other_way.merge(model.set);
        ASSERT_EQ(merged, other_way);
        model.samples.insert(other.samples.begin(), other.samples.end());
        model.check(merged);
        ASSERT_EQ(DeliveredSamples::decode(merged.encode()), merged);
        DeliveredSamples again = merged;
        again.merge(merged);
        ASSERT_EQ(again, merged);
    }
}

TEST(DeliveredSamples, MergeCompletesBlocks) {
    DeliveredSamples odd(3);
    DeliveredSamples even(3);
    for (std::uint64_t sample = 0; sample < 10; ++sample) (sample % 2 == 1 ? odd : even).add(2, sample, 10);
    EXPECT_FALSE(odd.is_whole(2));
    EXPECT_EQ(odd.count(2, 10), 5u);
    odd.merge(even);
    EXPECT_TRUE(odd.is_whole(2));
    DeliveredSamples whole(3);
    whole.add_block(2);
    EXPECT_EQ(odd, whole);
}

TEST(DeliveredSamples, TakesFewBytesAtAnEpochsEnds) {
    constexpr std::uint32_t kBlocks = 1'000'000;
    DeliveredSamples set(kBlocks);
    EXPECT_LE(set.encode().size(), 40u);
    set.add(17, 3, 1000);
    EXPECT_LE(set.encode().size(), 60u);
    for (std::uint32_t block = 0; block < kBlocks; ++block) set.add_block(block);
    EXPECT_LE(set.encode().size(), 40u);
    EXPECT_EQ(DeliveredSamples::decode(set.encode()), set);
}

TEST(DeliveredSamples, DamagedBytesGiveASetOrNothing) {
    std::mt19937_64 random(2);
    const auto bytes = random_model(random, 60, 500).set.encode();
    for (std::size_t size = 0; size < bytes.size(); ++size) {
        EXPECT_FALSE(DeliveredSamples::decode(std::span(bytes).first(size))) << size;
    }
    std::uint64_t refused = 0;
    const std::uint64_t cases = test::property_cases(20'000);
    for (std::uint64_t i = 0; i < cases; ++i) {
        auto damaged = bytes;
        for (std::uint64_t edits = 1 + random() % 3; edits > 0; --edits) {
            const std::size_t at = random() % damaged.size();
            // Most zeros are high bytes of numbers. Larger numbers only make this test slow.
            if (damaged[at] == std::byte{0}) continue;
            damaged[at] = static_cast<std::byte>(random());
        }
        const auto set = DeliveredSamples::decode(damaged);
        refused += !set;
        ASSERT_TRUE(!set || DeliveredSamples::decode(set->encode()) == set);
    }
    EXPECT_GT(refused, cases / 2);
}

TEST(DeliveredSamples, RefusesPartsThatAreNoParts) {
    const auto with_parts = [](std::uint32_t first, std::uint32_t second, bool first_is_whole) {
        DeliveredSamples set(100);
        if (first_is_whole) set.add_block(10);
        set.add(20, 0, 2);
        set.add(30, 0, 2);
        auto bytes = set.encode();
        const auto replace = [&](std::uint32_t from, std::uint32_t to) {
            for (std::size_t at = 16; at + 4 <= bytes.size(); ++at) {
                if (std::memcmp(&bytes[at], &from, sizeof from) != 0) continue;
                std::memcpy(&bytes[at], &to, sizeof to);
                return;
            }
        };
        replace(30, second);
        replace(20, first);
        return DeliveredSamples::decode(bytes).has_value();
    };
    EXPECT_TRUE(with_parts(20, 30, true));
    EXPECT_FALSE(with_parts(30, 20, true)) << "not in order";
    EXPECT_FALSE(with_parts(20, 20, true)) << "twice";
    EXPECT_FALSE(with_parts(20, 100, true)) << "beyond the last block";
    EXPECT_FALSE(with_parts(10, 30, true)) << "of a whole block";
    EXPECT_TRUE(with_parts(10, 30, false));
}

TEST(DeliveredSamples, PartsOfOtherSizesDoNotFit) {
    DeliveredSamples ten(4);
    ten.add(2, 3, 10);
    DeliveredSamples five(4);
    five.add(2, 3, 5);
    EXPECT_TRUE(ten.is_like(ten));
    EXPECT_FALSE(ten.is_like(five));
    EXPECT_FALSE(ten.is_like(DeliveredSamples(5)));
    EXPECT_TRUE(ten.is_like(DeliveredSamples(4)));
    EXPECT_TRUE(ten.fits([](std::uint32_t) { return 10; }));
    EXPECT_FALSE(ten.fits([](std::uint32_t block) { return block == 2 ? 5 : 10; }));
}

}  // namespace
}  // namespace larder::detail
