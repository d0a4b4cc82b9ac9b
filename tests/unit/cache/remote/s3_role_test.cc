#include "cache/remote/s3_role.h"

#include <gtest/gtest.h>

#include <limits>

namespace larder::cache {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kHour = 3600 * kSecond;

TEST(S3RoleRenewal, ComesFiveMinutesBeforeTheEnd) {
    EXPECT_EQ(s3_role_renewal_ns(6 * kHour, false), 6 * kHour - 300 * kSecond);
    EXPECT_EQ(s3_role_renewal_ns(kHour, false), kHour - 300 * kSecond);
}

TEST(S3RoleRenewal, ComesHalfWayWhereTheyLiveForMinutes) {
    EXPECT_EQ(s3_role_renewal_ns(400 * kSecond, false), 200 * kSecond);
    EXPECT_EQ(s3_role_renewal_ns(10 * kSecond, false), 5 * kSecond);
}

TEST(S3RoleRenewal, IsNeverMoreThanOnceASecond) {
    for (const std::int64_t remaining_ns : {kSecond, std::int64_t{0}, -kHour}) {
        EXPECT_EQ(s3_role_renewal_ns(remaining_ns, false), kSecond);
        EXPECT_EQ(s3_role_renewal_ns(remaining_ns, true), kSecond);
    }
}

TEST(S3RoleRenewal, LooksOnceADayAtThoseThatDoNotExpire) {
    constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
    EXPECT_EQ(s3_role_renewal_ns(kNever, false), 24 * kHour);
    EXPECT_EQ(s3_role_renewal_ns(kNever, true), 60 * kSecond);
}

TEST(S3RoleRenewal, IsTriedAgainWithinAMinuteAndMoreOftenNearTheEnd) {
    EXPECT_EQ(s3_role_renewal_ns(300 * kSecond, true), 60 * kSecond);
    EXPECT_EQ(s3_role_renewal_ns(40 * kSecond, true), 10 * kSecond);
}

}  // namespace
}  // namespace larder::cache
