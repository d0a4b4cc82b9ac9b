#include "cache/remote/renewed_value.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include "tests/support/test_units.h"

namespace larder::cache {
namespace {

using test::kSecond_ns;

constexpr std::int64_t kHour_ns = 3600 * kSecond_ns;

TEST(RenewalDelay, ComesFiveMinutesBeforeExpiry) {
    EXPECT_EQ(renewal_delay_ns(6 * kHour_ns, false), 6 * kHour_ns - 300 * kSecond_ns);
    EXPECT_EQ(renewal_delay_ns(kHour_ns, false), kHour_ns - 300 * kSecond_ns);
}

TEST(RenewalDelay, ComesHalfWayForShortLivedCredentials) {
    EXPECT_EQ(renewal_delay_ns(400 * kSecond_ns, false), 200 * kSecond_ns);
    EXPECT_EQ(renewal_delay_ns(10 * kSecond_ns, false), 5 * kSecond_ns);
}

TEST(RenewalDelay, ComesAtMostOnceASecond) {
    for (const std::int64_t remaining_ns : {kSecond_ns, std::int64_t{0}, -kHour_ns}) {
        EXPECT_EQ(renewal_delay_ns(remaining_ns, false), kSecond_ns);
    }
    for (const std::int64_t remaining_ns : {kSecond_ns, std::int64_t{0}, -kSecond_ns}) {
        EXPECT_EQ(renewal_delay_ns(remaining_ns, true), kSecond_ns);
    }
}

TEST(RenewalDelay, BacksOffToAMinuteOnceExpired) {
    EXPECT_EQ(renewal_delay_ns(-8 * kSecond_ns, true), 8 * kSecond_ns);
    EXPECT_EQ(renewal_delay_ns(-kHour_ns, true), 60 * kSecond_ns);
}

TEST(RenewalDelay, ChecksNonExpiringCredentialsOnceADay) {
    constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
    EXPECT_EQ(renewal_delay_ns(kNever, false), 24 * kHour_ns);
    EXPECT_EQ(renewal_delay_ns(kNever, true), 60 * kSecond_ns);
}

TEST(RenewalDelay, RetriesWithinAMinuteAndMoreOftenNearExpiry) {
    EXPECT_EQ(renewal_delay_ns(300 * kSecond_ns, true), 60 * kSecond_ns);
    EXPECT_EQ(renewal_delay_ns(40 * kSecond_ns, true), 10 * kSecond_ns);
}

TEST(RenewedValue, SaysWhyItsLastRenewalFailed) {
    std::atomic<bool> fails = true;
    const auto fetch = [&]() -> Result<RenewedValue<int>::Fetched> {
        if (fails) return fail(ErrorCode::unavailable, "no such key");
        return RenewedValue<int>::Fetched{.value = 2};
    };
    const RenewedValue<int> value("the value", fetch, {.value = 1, .expires_unix_ns = unix_time_ns()});
    while (value.renewal_error().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(value.renewal_error(), "no such key");
    EXPECT_EQ(value.value(), 1);
    fails = false;
    while (value.value() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(value.renewal_error(), "");
}

}  // namespace
}  // namespace larder::cache
