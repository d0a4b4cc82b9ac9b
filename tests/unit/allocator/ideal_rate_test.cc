#include "allocator/ideal_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace larder::allocator {
namespace {

constexpr double kIdeal = 4e8;  // bytes/s of one rank

// One second of each rank: it computes at kIdeal for `busy_part` of the time and waits for the rest, with some noise.
IdealRate::Interval second(double busy_part, std::mt19937_64& random, std::uint32_t ranks = 1) {
    const double noise = 0.9 + 0.2 * static_cast<double>(random() % 1000) / 1000;
    const double busy_s = busy_part * ranks;
    return {.bytes = static_cast<std::uint64_t>(kIdeal * busy_s * noise), .busy_s = busy_s, .ranks = ranks};
}

TEST(IdealRate, IsUnknownBeforeEnoughIntervals) {
    IdealRate rate;
    std::mt19937_64 random(1);
    EXPECT_FALSE(rate.bytes_per_second().has_value());
    for (int i = 0; i < 4; ++i) rate.add(second(1, random));
    EXPECT_FALSE(rate.bytes_per_second().has_value()) << "the first two seconds are warm-up";
    for (int i = 0; i < 2; ++i) rate.add(second(1, random));
    EXPECT_TRUE(rate.bytes_per_second().has_value());
}

TEST(IdealRate, IsTheSameWhetherDataIsTheBottleneckOrNot) {
    for (const double busy_part : {1.0, 0.5, 0.1, 0.02}) {
        IdealRate rate;
        std::mt19937_64 random(2);
        for (int i = 0; i < 600; ++i) rate.add(second(busy_part, random));
        ASSERT_TRUE(rate.bytes_per_second().has_value()) << busy_part;
        EXPECT_NEAR(*rate.bytes_per_second(), kIdeal, 0.05 * kIdeal) << busy_part;
    }
}

TEST(IdealRate, IsNotBiasedByLargeBatches) {
    // Each second holds whole batches, so the count varies by one between seconds: at 1.125 a second, seven of eight
    // seconds have the same count.
    for (const double batches_per_second : {1.125, 2.875, 6.67, 6.9}) {
        IdealRate rate;
        double done = 0;
        double counted = 0;
        for (int i = 0; i < 300; ++i) {
            done += batches_per_second;
            const double whole = std::floor(done) - counted;
            counted += whole;
            rate.add({.bytes = static_cast<std::uint64_t>(whole * 1e6), .busy_s = 1, .ranks = 1});
        }
        EXPECT_NEAR(*rate.bytes_per_second(), batches_per_second * 1e6, 0.03 * batches_per_second * 1e6);
    }
}

TEST(IdealRate, IsNotBiasedByBatchesCountedAheadOfTheLoop) {
    // Counts of 4 MiB batches and busy seconds, as reported for a loop at 39.9e6 bytes/s whose four workers wait for
    // the remote.
    constexpr std::pair<int, double> kReported[] = {
        {20, 2.1}, {3, 0.37}, {6, 0.33},  {1, 0.46}, {3, 0.21}, {6, 0.41}, {5, 0.85}, {7, 0.75}, {3, 0.3},
        {6, 0.2},  {2, 0.63}, {13, 1.37}, {4, 0.35}, {3, 0.49}, {4, 0.32}, {8, 0.84}, {6, 0.2},  {6, 1.05},
        {4, 0.21}, {4, 0.45}, {3, 0.58},  {5, 0.23}, {4, 0.63}, {5, 0.32}, {7, 0.9}};
    IdealRate bottleneck;
    for (const auto& [batches, busy_s] : kReported) {
        bottleneck.add({.bytes = static_cast<std::uint64_t>(batches) << 22, .busy_s = busy_s, .ranks = 1});
    }
    EXPECT_NEAR(*bottleneck.bytes_per_second(), 39.9e6, 0.02 * 39.9e6);
    double ahead_bytes = 0;
    const auto interval = [&](double busy_s, double then_ahead_bytes) {
        const double bytes = kIdeal * busy_s + then_ahead_bytes - ahead_bytes;
        ahead_bytes = then_ahead_bytes;
        return IdealRate::Interval{.bytes = static_cast<std::uint64_t>(bytes), .busy_s = busy_s, .ranks = 1};
    };
    IdealRate epochs;
    for (int i = 0; i < 10; ++i) {
        for (int j = 0; j < 9; ++j) epochs.add(interval(1, 0.8 * kIdeal));
        epochs.add(interval(1, 0));
    }
    EXPECT_NEAR(*epochs.bytes_per_second(), kIdeal, 0.02 * kIdeal);
}

TEST(IdealRate, IsOfTheWholeJobNotOfOneRank) {
    IdealRate rate;
    std::mt19937_64 random(3);
    for (int i = 0; i < 60; ++i) rate.add(second(0.3, random, 8));
    EXPECT_NEAR(*rate.bytes_per_second(), 8 * kIdeal, 0.05 * 8 * kIdeal);
}

TEST(IdealRate, ExcludesPausesOfTheTrainingLoop) {
    IdealRate rate;
    std::mt19937_64 random(4);
    for (int i = 0; i < 60; ++i) {
        // Every tenth second has a checkpoint: one more second of work that reads nothing.
        auto interval = second(0.5, random);
        if (i % 10 == 9) interval.busy_s += 1;
        rate.add(interval);
    }
    EXPECT_NEAR(*rate.bytes_per_second(), kIdeal, 0.05 * kIdeal);
}

TEST(IdealRate, FollowsAJobThatBecomesFaster) {
    IdealRate rate;
    std::mt19937_64 random(5);
    for (int i = 0; i < 100; ++i) rate.add(second(1, random));
    for (int i = 0; i < 60; ++i) {
        auto interval = second(1, random);
        interval.bytes *= 3;
        rate.add(interval);
    }
    EXPECT_NEAR(*rate.bytes_per_second(), 3 * kIdeal, 0.15 * kIdeal);
}

TEST(IdealRate, StartsOverWhenRanksChange) {
    IdealRate rate;
    std::mt19937_64 random(6);
    for (int i = 0; i < 20; ++i) rate.add(second(1, random, 2));
    rate.add(second(1, random, 4));
    EXPECT_FALSE(rate.bytes_per_second().has_value());
    for (int i = 0; i < 20; ++i) rate.add(second(1, random, 4));
    EXPECT_NEAR(*rate.bytes_per_second(), 4 * kIdeal, 0.2 * kIdeal);
}

TEST(IdealRate, OutlivesAnAttemptWhoseRanksEndAndBeginNodeByNode) {
    IdealRate rate;
    std::mt19937_64 random(7);
    for (int i = 0; i < 20; ++i) rate.add(second(1, random, 2));
    rate.add({.bytes = 0, .busy_s = 0, .ranks = 1});
    EXPECT_TRUE(rate.bytes_per_second().has_value()) << "one has ended";
    rate.add(second(0.5, random, 1));
    EXPECT_TRUE(rate.bytes_per_second().has_value()) << "one has begun again";
    rate.add(second(1, random, 2));
    EXPECT_NEAR(*rate.bytes_per_second(), 2 * kIdeal, 0.2 * kIdeal);
}

TEST(IdealRate, StartsOverWhenFewerRanksStay) {
    IdealRate rate;
    std::mt19937_64 random(8);
    for (int i = 0; i < 20; ++i) rate.add(second(1, random, 2));
    for (int i = 0; i < 4; ++i) rate.add(second(1, random, 1));
    EXPECT_FALSE(rate.bytes_per_second().has_value());
    for (int i = 0; i < 20; ++i) rate.add(second(1, random, 1));
    EXPECT_NEAR(*rate.bytes_per_second(), kIdeal, 0.1 * kIdeal);
}

TEST(IdealRate, IgnoresInvalidIntervals) {
    IdealRate rate;
    rate.add({.bytes = 5, .busy_s = -1, .ranks = 1});
    rate.add({.bytes = 5, .busy_s = std::numeric_limits<double>::quiet_NaN(), .ranks = 1});
    rate.add({.bytes = 5, .busy_s = 1, .ranks = 0});
    for (int i = 0; i < 100; ++i) rate.add({.bytes = 0, .busy_s = 1, .ranks = 1});
    EXPECT_FALSE(rate.bytes_per_second().has_value());
}

}  // namespace
}  // namespace larder::allocator
