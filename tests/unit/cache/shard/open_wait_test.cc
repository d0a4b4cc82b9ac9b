#include <gtest/gtest.h>

#include <limits>

#include "cache/shard/session.h"

namespace larder::cache {
namespace {

constexpr std::int64_t kNow_ns = 1'000'000'000'000;

TEST(OpenWait, CountsFromTheStartOfTheWait) {
    EXPECT_EQ(open_wait_ns(kNow_ns - 250'000'000, kNow_ns), 250'000'000);
}

TEST(OpenWait, IsZeroWhileTheLoopDoesNotWait) {
    EXPECT_EQ(open_wait_ns(0, kNow_ns), 0);
}

TEST(OpenWait, ImplausibleStartTimesCountAsZero) {
    EXPECT_EQ(open_wait_ns(kNow_ns + 1, kNow_ns), 0);
    EXPECT_EQ(open_wait_ns(-1, kNow_ns), 0);
    EXPECT_EQ(open_wait_ns(std::numeric_limits<std::int64_t>::max(), kNow_ns), 0);
    EXPECT_EQ(open_wait_ns(std::numeric_limits<std::int64_t>::min(), kNow_ns), 0);
    EXPECT_EQ(open_wait_ns(1, kNow_ns), 0) << "more than a minute ago: the time of another clock";
}

}  // namespace
}  // namespace larder::cache
