#include "cache/remote/http_endpoint.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "base/clock.h"
#include "tests/support/units.h"

namespace larder::cache {
namespace {

using test::kSecond_ns;

constexpr std::int64_t kRetryFor_ns = 60 * kSecond_ns;

class HttpEndpointTest : public testing::Test {
protected:
    bool is_given_up(std::int64_t submitted_ns) {
        return endpoint_.is_given_up(submitted_ns, kRetryFor_ns, clock_.now_ns());
    }

    ManualClock clock_;
    HttpEndpoint endpoint_{64};
};

TEST_F(HttpEndpointTest, GivesUpWhatHasWaitedForAsLongAsNothingWasAnswered) {
    clock_.advance_ns(kSecond_ns);
    const std::int64_t submitted_ns = clock_.now_ns();
    endpoint_.failed(": timed out", ETIMEDOUT, clock_.now_ns());
    clock_.advance_ns(kRetryFor_ns);
    endpoint_.failed(": timed out", ETIMEDOUT, clock_.now_ns());
    EXPECT_FALSE(is_given_up(submitted_ns));
    clock_.advance_ns(1);
    EXPECT_TRUE(is_given_up(submitted_ns));
    EXPECT_FALSE(is_given_up(clock_.now_ns() - kRetryFor_ns)) << "a late comer has its time, too";
}

TEST_F(HttpEndpointTest, GoesOnAfterAnyAnswer) {
    clock_.advance_ns(kSecond_ns);
    const std::int64_t submitted_ns = clock_.now_ns();
    endpoint_.failed(": timed out", ETIMEDOUT, clock_.now_ns());
    clock_.advance_ns(2 * kRetryFor_ns);
    endpoint_.answered();
    EXPECT_FALSE(is_given_up(submitted_ns));
    endpoint_.failed(": timed out", ETIMEDOUT, clock_.now_ns());
    clock_.advance_ns(kRetryFor_ns / 2);
    EXPECT_FALSE(is_given_up(submitted_ns));
}

TEST_F(HttpEndpointTest, IsGivenTimeWhereNothingHasFailed) {
    clock_.advance_ns(10 * kRetryFor_ns);
    EXPECT_FALSE(is_given_up(0));
}

}  // namespace
}  // namespace larder::cache
