#include "cache/shard/token_bucket.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/test_units.h"

namespace larder::cache {

using test::kSecond_ns;
namespace {

TEST(TokenBucket, UnlimitedBucketGrantsEverything) {
    TokenBucket bucket;
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(bucket.try_take(std::uint64_t{1} << 40, 0));
    EXPECT_EQ(bucket.taken_bytes(), std::uint64_t{100} << 40);
    EXPECT_EQ(bucket.ready_at_ns(1), 0);
}

TEST(TokenBucket, PayGoesBelowZeroAndDelaysLaterTakes) {
    TokenBucket bucket;
    bucket.set_limit(1000, 500, 0);
    EXPECT_EQ(bucket.ready_at_ns(0), -kSecond_ns / 2) << "nothing is owed";
    bucket.pay(2500, 0);
    EXPECT_EQ(bucket.taken_bytes(), 2500u);
    EXPECT_EQ(bucket.ready_at_ns(0), 2 * kSecond_ns);
    EXPECT_FALSE(bucket.try_take(1, 2 * kSecond_ns));
    EXPECT_TRUE(bucket.try_take(100, 2 * kSecond_ns + kSecond_ns / 10));
}

TEST(TokenBucket, GivesTheBurstAtOnceAndThenTheRate) {
    TokenBucket bucket;
    bucket.set_limit(1000, 500, 0);
    EXPECT_TRUE(bucket.try_take(300, 0));
    EXPECT_TRUE(bucket.try_take(200, 0));
    EXPECT_FALSE(bucket.try_take(1, 0));
    EXPECT_FALSE(bucket.try_take(100, kSecond_ns / 10 - 1'000'000));
    EXPECT_TRUE(bucket.try_take(100, kSecond_ns / 10));
    EXPECT_EQ(bucket.ready_at_ns(200), kSecond_ns / 10 + kSecond_ns / 5);
}

TEST(TokenBucket, BlockLargerThanTheBurstLeavesADebt) {
    TokenBucket bucket;
    bucket.set_limit(1000, 100, 0);
    EXPECT_TRUE(bucket.try_take(1000, 0));
    EXPECT_FALSE(bucket.try_take(1, kSecond_ns / 2));
    EXPECT_FALSE(bucket.try_take(1000, kSecond_ns - 1'000'000));
    EXPECT_TRUE(bucket.try_take(1000, kSecond_ns));
}

TEST(TokenBucket, ChangingTheLimitKeepsTheDebt) {
    TokenBucket bucket;
    bucket.set_limit(1000, 1000, 0);
    EXPECT_TRUE(bucket.try_take(1000, 0));
    bucket.set_limit(2000, 1000, 0);
    EXPECT_FALSE(bucket.try_take(1000, kSecond_ns / 2 - 1'000'000));
    EXPECT_TRUE(bucket.try_take(1000, kSecond_ns / 2));
    bucket.set_limit(0, 0, kSecond_ns / 2);
    EXPECT_TRUE(bucket.try_take(1'000'000, kSecond_ns / 2));
}

TEST(TokenBucket, ExpiredLimitFallsBackToFloorAndKeepsTheDebt) {
    TokenBucket bucket;
    bucket.set_limit(1000, 1000, 0);
    bucket.set_expiry(kSecond_ns, 100, 1000);
    EXPECT_EQ(bucket.rate_bytes_per_second(kSecond_ns - 1), 1000);
    EXPECT_EQ(bucket.rate_bytes_per_second(kSecond_ns), 100);
    EXPECT_TRUE(bucket.try_take(1000, kSecond_ns / 2));
    EXPECT_FALSE(bucket.try_take(1000, 6 * kSecond_ns - 1'000'000)) << "500 bytes were owed, at 100 bytes/s";
    EXPECT_TRUE(bucket.try_take(1000, 6 * kSecond_ns));
    bucket.set_limit(1000, 1000, 16 * kSecond_ns);
    EXPECT_EQ(bucket.rate_bytes_per_second(20 * kSecond_ns), 1000) << "a new limit does not expire";
}

std::int64_t slept_in_test_ns = 0;

TEST(TokenBucket, LimitExpiresWhileTheMachineSleeps) {
    slept_in_test_ns = 1000 * kSecond_ns;
    TokenBucket bucket([] { return slept_in_test_ns; });
    bucket.set_limit(1000, 1000, 0);
    bucket.set_expiry(1010 * kSecond_ns, 100, 100);  // in ten seconds
    EXPECT_TRUE(bucket.try_take(1000, kSecond_ns));
    EXPECT_TRUE(bucket.try_take(1000, 2 * kSecond_ns)) << "the limit is in force";
    slept_in_test_ns += 3600 * kSecond_ns;
    EXPECT_EQ(bucket.rate_bytes_per_second(3 * kSecond_ns), 100);
    EXPECT_TRUE(bucket.try_take(100, 3 * kSecond_ns));
    EXPECT_FALSE(bucket.try_take(100, 4 * kSecond_ns - 1'000'000)) << "the new rate holds";
    EXPECT_TRUE(bucket.try_take(100, 4 * kSecond_ns)) << "the hour is not owed";
}

TEST(TokenBucket, GivesTheRateAndNeverMoreThanOneBurstBeside) {
    std::mt19937_64 random(7);
    for (int round = 0; round < 200; ++round) {
        const double rate = 1000.0 + static_cast<double>(random() % 1'000'000);
        const std::uint64_t burst = 100 + random() % 100'000;
        TokenBucket bucket;
        std::int64_t now_ns = static_cast<std::int64_t>(random() % kSecond_ns);
        const std::int64_t start_ns = now_ns;
        bucket.set_limit(rate, burst, now_ns);
        for (int i = 0; i < 2000; ++i) {
            const std::uint64_t bytes = 1 + random() % burst;
            if (!bucket.try_take(bytes, now_ns)) {
                const std::int64_t ready_ns = bucket.ready_at_ns(bytes);
                ASSERT_GT(ready_ns, now_ns);
                now_ns = ready_ns + 1;
                ASSERT_TRUE(bucket.try_take(bytes, now_ns)) << "ready_at_ns returned a time that is too early";
            }
            const double allowed = rate * static_cast<double>(now_ns - start_ns) * 1e-9 + static_cast<double>(burst);
            ASSERT_LE(static_cast<double>(bucket.taken_bytes()), allowed + 1);
        }
        // A reader that takes all tokens gets the whole rate.
        const double granted = rate * static_cast<double>(now_ns - start_ns) * 1e-9;
        ASSERT_GE(static_cast<double>(bucket.taken_bytes()), granted * (1 - 1e-6) - 1);
    }
}

TEST(TokenBucket, CollectsTheTokensThatAFullBucketCannotKeep) {
    constexpr std::int64_t kTick_ns = kSecond_ns / 10;
    TokenBucket bucket;
    EXPECT_EQ(bucket.collect_unused(0), 0u) << "no limit";
    bucket.set_limit(1000, 500, 0);
    EXPECT_EQ(bucket.collect_unused(0), 0u) << "another limit";
    EXPECT_EQ(bucket.collect_unused(kTick_ns), 100u);
    ASSERT_TRUE(bucket.try_take(300, kTick_ns));
    EXPECT_EQ(bucket.collect_unused(2 * kTick_ns), 0u) << "the bucket keeps them";
    EXPECT_EQ(bucket.collect_unused(5 * kTick_ns), 100u);
    bucket.pay(800, 5 * kTick_ns);
    EXPECT_EQ(bucket.collect_unused(9 * kTick_ns), 0u);
    EXPECT_EQ(bucket.collect_unused(13 * kTick_ns), 0u);
    EXPECT_EQ(bucket.collect_unused(14 * kTick_ns), 100u);
    EXPECT_EQ(bucket.collect_unused(24 * kTick_ns), 0u) << "the interval is too long";
}

TEST(TokenBucket, GivenTokensServeTakesThatFindNone) {
    TokenBucket bucket;
    bucket.set_limit(1000, 500, 0);
    ASSERT_TRUE(bucket.try_take(500, 0));
    ASSERT_FALSE(bucket.try_take(1, 0));
    bucket.give(300);
    EXPECT_TRUE(bucket.try_take(300, 0));
    EXPECT_FALSE(bucket.try_take(1, 0));
    bucket.give(5000);
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(bucket.try_take(500, 0)) << i;
    EXPECT_FALSE(bucket.try_take(1, 0));
    for (int i = 0; i < 100; ++i) bucket.give(100);
    EXPECT_TRUE(bucket.try_take(500, 0));
    EXPECT_FALSE(bucket.try_take(1, 0)) << "a burst at most is kept";
    bucket.give(300);
    bucket.set_expiry(kSecond_ns / 10, 100, 500);
    EXPECT_FALSE(bucket.try_take(200, kSecond_ns / 10)) << "the lease has expired";
}

TEST(TokenBucket, ConcurrentThreadsTakeNoMoreThanOneBurst) {
    TokenBucket bucket;
    bucket.set_limit(1, 10'000, 0);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 10'000; ++i) bucket.try_take(1, 0);
        });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(bucket.taken_bytes(), 10'000u);
}

TEST(TokenBucket, ChangesOfTheLimitLoseNoTakeOfAnotherThread) {
    constexpr std::uint64_t kBurst = 100'000;
    TokenBucket bucket;
    bucket.set_limit(1, kBurst, 0);
    std::atomic<int> taking = 3;
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&] {
            for (std::uint64_t i = 0; i < kBurst; ++i) bucket.try_take(1, 0);
            --taking;
        });
    }
    // The time stands still, so whatever the rate, one burst is all that may be taken.
    std::uint64_t changes = 0;
    for (; taking > 0; ++changes) bucket.set_limit(changes % 2 == 0 ? 3 : 1, kBurst, 0);
    for (auto& thread : threads) thread.join();
    EXPECT_GT(changes, 0u);
    EXPECT_LE(bucket.taken_bytes(), kBurst);
}

// Threads pay and refund while others change the limit and let it expire. The time stands still, so all that was paid
// and not refunded is owed at the end, at whatever rate.
TEST(TokenBucket, ChangesOfTheLimitLoseNoPaymentOfAnotherThread) {
    constexpr std::uint64_t kPayments = 20'000;
    constexpr std::uint64_t kThreads = 3;
    TokenBucket bucket;
    bucket.set_limit(1, 1, 0);
    std::atomic<int> paying = kThreads;
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([&] {
            for (std::uint64_t i = 0; i < kPayments; ++i) {
                bucket.pay(4, 0);
                bucket.refund(2);
            }
            --paying;
        });
    }
    std::thread expiring([&] {
        while (paying > 0) bucket.set_expiry(0, 2, 1);  // has expired already: the next caller applies it
    });
    std::uint64_t changes = 0;
    for (; paying > 0; ++changes) bucket.set_limit(changes % 2 == 0 ? 4 : 1, 1, 0);
    for (auto& thread : threads) thread.join();
    expiring.join();
    bucket.set_limit(1, 1, 0);
    constexpr std::uint64_t kOwed = kThreads * kPayments * 2;
    EXPECT_EQ(bucket.taken_bytes(), kOwed);
    // Each change of the limit rounds what is owed up to a whole byte.
    EXPECT_GE(bucket.ready_at_ns(0), static_cast<std::int64_t>(kOwed - 1) * kSecond_ns);
    EXPECT_GT(changes, 0u);
}

// The rate is lowered in turns, while threads take all that they get. A take that reads the old rate must not be paid
// at it once the new one holds: no more bytes pass than the rate at each moment allows, and the bursts.
TEST(TokenBucket, NoMoreThanTheRateInForcePassesWhileTheLimitChanges) {
    constexpr std::uint64_t kBurst = 1000;
    TokenBucket bucket;
    std::atomic<std::int64_t> now_ns = 0;
    std::atomic<bool> done = false;
    std::atomic<std::uint64_t> tries = 0;
    bucket.set_limit(10'000, kBurst, 0);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&] {
            for (; !done; ++tries) bucket.try_take(10, now_ns);
        });
    }
    double allowed = kBurst;
    for (int step = 0; step < 300; ++step) {
        const double rate = step % 2 == 0 ? 100 : 10'000;
        bucket.set_limit(rate, kBurst, now_ns);
        now_ns += kSecond_ns / 100;
        allowed += rate / 100;
        for (const std::uint64_t before = tries; tries < before + 10;) std::this_thread::yield();
        // A take that began before the step may see the time of the step before.
        ASSERT_LE(static_cast<double>(bucket.taken_bytes()), allowed + 3 * 10) << "step " << step;
    }
    done = true;
    for (auto& thread : threads) thread.join();
    EXPECT_GT(static_cast<double>(bucket.taken_bytes()), kBurst) << "nothing was taken while limits changed";
}

TEST(TokenBucket, LimitExpiresOnceForAllThreads) {
    constexpr std::uint64_t kBurst = 1000;
    for (int round = 0; round < 200; ++round) {
        TokenBucket bucket;
        bucket.set_limit(1000, kBurst, 0);
        bucket.set_expiry(kSecond_ns, 1, kBurst);
        bucket.pay(2000, 0);  // 1000 bytes are owed at the expiry, and are paid back at 1 byte/s
        std::vector<std::thread> threads;
        for (int t = 0; t < 3; ++t) threads.emplace_back([&] { bucket.pay(1, kSecond_ns); });
        for (auto& thread : threads) thread.join();
        ASSERT_EQ(bucket.ready_at_ns(0), kSecond_ns + 1003 * kSecond_ns - 1000 * kSecond_ns);
    }
}

}  // namespace
}  // namespace larder::cache
