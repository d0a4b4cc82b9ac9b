// How requests to a remote are paced: the concurrency limit, the delay before a retry, and when an answer is late.

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <utility>

#include "cache/remote/concurrency_limit.h"
#include "cache/remote/http_endpoint_state.h"
#include "cache/remote/http_get.h"
#include "cache/remote/retry_delay.h"

namespace larder::cache {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kSecond = 1'000 * kMs;

// Keeps the window full; each answer takes `first_byte_ns`.
void run(ConcurrencyLimit& limit, std::size_t answers, std::int64_t first_byte_ns, std::int64_t& now_ns) {
    for (std::size_t i = 0; i < answers; ++i) {
        while (limit.may_start()) limit.started();
        now_ns += kMs;
        limit.succeeded(first_byte_ns, now_ns);
    }
}

TEST(ConcurrencyLimit, GrowsWhileAnswersStayFast) {
    ConcurrencyLimit limit(64);
    std::int64_t now_ns = kSecond;
    const std::size_t before = limit.window();
    run(limit, 2000, 10 * kMs, now_ns);
    EXPECT_GT(limit.window(), 2 * before);
    run(limit, 100'000, 10 * kMs, now_ns);
    EXPECT_EQ(limit.window(), 64u);
}

TEST(ConcurrencyLimit, DoesNotGrowWhileUnused) {
    ConcurrencyLimit limit(64);
    const std::size_t before = limit.window();
    for (int i = 0; i < 1000; ++i) {
        limit.started();
        limit.succeeded(10 * kMs, i * kMs);
    }
    EXPECT_EQ(limit.window(), before);
}

TEST(ConcurrencyLimit, ShrinksWhenAnswersSlowDown) {
    ConcurrencyLimit limit(64);
    std::int64_t now_ns = kSecond;
    run(limit, 10'000, 10 * kMs, now_ns);
    const std::size_t before = limit.window();
    run(limit, 200, 100 * kMs, now_ns);
    EXPECT_LT(limit.window(), before / 2);
    run(limit, 2000, 100 * kMs, now_ns);
    EXPECT_GE(limit.window(), 3u) << "slow answers alone do not stop the requests";
}

TEST(ConcurrencyLimit, HalvesOnceForOneBurstOfRefusals) {
    ConcurrencyLimit limit(64);
    std::int64_t now_ns = kSecond;
    run(limit, 100'000, 10 * kMs, now_ns);
    for (int i = 0; i < 32; ++i) limit.overloaded(now_ns + i);
    EXPECT_EQ(limit.window(), 32u);
    for (int i = 0; i < 20; ++i) {
        while (limit.may_start()) limit.started();
        limit.overloaded(now_ns += kSecond);
    }
    EXPECT_EQ(limit.window(), 1u);
    EXPECT_TRUE(limit.in_flight() < 1 || !limit.may_start());
}

// A remote in simulated time. Answers requests above its capacity with 503 SlowDown at once, all others in 10 ms.
class BusyRemote {
public:
    std::size_t capacity = 1000;

    // Runs for `seconds`. Returns the mean number of requests in flight during the last second.
    double run(ConcurrencyLimit& limit, std::int64_t seconds) {
        double sum = 0;
        for (std::int64_t ms = 0; ms < seconds * 1000; ++ms) {
            now_ns_ += kMs;
            refused_ += std::exchange(refusing_, 0);
            for (; refused_ > 0; --refused_) limit.overloaded(now_ns_);
            for (; !due_ns_.empty() && due_ns_.front() <= now_ns_; due_ns_.pop_front()) {
                limit.succeeded(10 * kMs, now_ns_);
            }
            while (limit.may_start()) {
                limit.started();
                if (due_ns_.size() < capacity) {
                    due_ns_.push_back(now_ns_ + 10 * kMs);
                } else {
                    ++refusing_;
                    ++refusals;
                }
            }
            if (ms >= (seconds - 1) * 1000) sum += static_cast<double>(due_ns_.size());
        }
        return sum / 1000;
    }

    std::size_t refusals = 0;

private:
    std::int64_t now_ns_ = kSecond;
    std::deque<std::int64_t> due_ns_;
    std::size_t refusing_ = 0;
    std::size_t refused_ = 0;
};

TEST(ConcurrencyLimit, FollowsTheRemotesCapacityDownAndUp) {
    ConcurrencyLimit limit(64);
    BusyRemote remote;
    EXPECT_NEAR(remote.run(limit, 30), 64, 1);
    EXPECT_EQ(remote.refusals, 0u);
    remote.capacity = 4;
    EXPECT_LE(remote.run(limit, 30), 4);
    EXPECT_LE(limit.window(), 6u);
    const std::size_t refusals = remote.refusals;
    remote.run(limit, 10);
    // A fixed window of 64 would be refused 60 times a millisecond.
    EXPECT_LT(remote.refusals - refusals, 10 * 2000u);
    remote.capacity = 1000;
    EXPECT_NEAR(remote.run(limit, 60), 64, 1);
}

TEST(RetryDelay, GrowsWithTriesAndIsRandom) {
    EXPECT_EQ(retry_delay_ns(1, 0), 25 * kMs);
    EXPECT_LE(retry_delay_ns(1, ~std::uint64_t{0}), 50 * kMs);
    EXPECT_EQ(retry_delay_ns(2, 0), 31'250'000);
    EXPECT_NE(retry_delay_ns(3, 1), retry_delay_ns(3, 7));
    EXPECT_EQ(retry_delay_ns(1000, 0), 2500 * kMs);
}

TEST(RetryDelay, RetriesSucceedSoonAfterAnOutage) {
    std::minstd_rand draw(7);
    for (const std::int64_t outage_ns : {kSecond / 4, kSecond, 5 * kSecond, 20 * kSecond}) {
        double mean_delay_ns = 0;
        constexpr int kRequests = 200;
        for (int i = 0; i < kRequests; ++i) {
            std::int64_t now_ns = 0;
            unsigned tries = 0;
            while (now_ns < outage_ns) now_ns += retry_delay_ns(++tries, draw());
            EXPECT_LE(now_ns, outage_ns + outage_ns / 2 + 50 * kMs);
            EXPECT_LT(tries, 40u) << "the remote is not asked too often";
            mean_delay_ns += static_cast<double>(now_ns - outage_ns) / kRequests;
        }
        EXPECT_LT(mean_delay_ns, 0.2 * static_cast<double>(outage_ns + 50 * kMs)) << outage_ns;
    }
}

TEST(RetryDelay, HonoursRetryAfterUpToAMinute) {
    EXPECT_GE(retry_delay_ns(1, 0, 7 * kSecond), 7 * kSecond);
    EXPECT_LE(retry_delay_ns(1, 0, 3600 * kSecond), 60 * kSecond) << "at most a minute";
}

TEST(LatencyPercentile, IsThe99thPercentileOfRecentAnswers) {
    LatencyPercentile percentile;
    for (int i = 0; i < 99; ++i) percentile.add(10 * kMs);
    EXPECT_FALSE(percentile.ns()) << "too few answers";
    for (int i = 0; i < 401; ++i) percentile.add(i < 3 ? 500 * kMs : 10 * kMs);
    EXPECT_EQ(percentile.ns(), 10 * kMs);
    for (int i = 0; i < 20; ++i) percentile.add(500 * kMs);
    EXPECT_EQ(percentile.ns(), 500 * kMs);
}

TEST(Tag, ComesFromEtagElseLastModified) {
    EXPECT_EQ(tag_of_version("\"abc\""), tag_of_version("abc")) << "listings leave quotes out";
    EXPECT_EQ(tag_of_version("W/\"abc\""), tag_of_version("abc"));
    EXPECT_NE(tag_of_version("\"abc\""), tag_of_version("\"abd\""));
    EXPECT_NE(tag_of_version("\"ab\""), tag_of_version("\"ba\""));
    EXPECT_GT(tag_of_version("\"0\""), 0);
    EXPECT_EQ(tag_of_version("\"\""), 0);
    EXPECT_EQ(tag_of_headers(nullptr, "Thu, 01 Jan 1970 00:01:40 GMT"), 100'000'000'000);
    EXPECT_EQ(tag_of_headers("\"x\"", "Thu, 01 Jan 1970 00:01:40 GMT"), tag_of_version("x"));
    EXPECT_EQ(tag_of_headers(nullptr, nullptr), 0);
}

}  // namespace
}  // namespace larder::cache
