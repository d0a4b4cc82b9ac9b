#include "cache/remote/http_endpoint_state.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "base/clock.h"
#include "tests/support/test_units.h"

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
    HttpEndpointState endpoint_{64};
};

TEST_F(HttpEndpointTest, RequestIsGivenUpAfterRetryTimeWithoutAnswers) {
    clock_.advance_ns(kSecond_ns);
    const std::int64_t submitted_ns = clock_.now_ns();
    endpoint_.failed(": timed out", ETIMEDOUT, clock_.now_ns());
    clock_.advance_ns(kRetryFor_ns);
    endpoint_.failed(": timed out", ETIMEDOUT, clock_.now_ns());
    EXPECT_FALSE(is_given_up(submitted_ns));
    clock_.advance_ns(1);
    EXPECT_TRUE(is_given_up(submitted_ns));
    EXPECT_FALSE(is_given_up(clock_.now_ns() - kRetryFor_ns)) << "a request submitted later has its full retry time";
}

TEST_F(HttpEndpointTest, AnyAnswerRestartsTheRetryTime) {
    clock_.advance_ns(kSecond_ns);
    const std::int64_t submitted_ns = clock_.now_ns();
    endpoint_.failed(": timed out", ETIMEDOUT, clock_.now_ns());
    clock_.advance_ns(2 * kRetryFor_ns);
    endpoint_.answered(clock_.now_ns());
    EXPECT_FALSE(is_given_up(submitted_ns));
    endpoint_.failed(": timed out", ETIMEDOUT, clock_.now_ns());
    clock_.advance_ns(kRetryFor_ns / 2);
    EXPECT_FALSE(is_given_up(submitted_ns));
}

TEST_F(HttpEndpointTest, RequestIsNotGivenUpWithoutFailures) {
    clock_.advance_ns(10 * kRetryFor_ns);
    EXPECT_FALSE(is_given_up(0));
}

TEST_F(HttpEndpointTest, OutageBeginsAfterASecondOfFailuresAndIsReportedOnce) {
    clock_.advance_ns(kSecond_ns);
    const std::int64_t began_ns = clock_.now_ns();
    endpoint_.failed(": refused", ECONNREFUSED, began_ns);
    clock_.advance_ns(kSecond_ns - 1);
    endpoint_.failed(": refused", ECONNREFUSED, clock_.now_ns());
    EXPECT_FALSE(endpoint_.begin_outage_if_silent(clock_.now_ns()));
    clock_.advance_ns(1);
    const auto begun = endpoint_.begin_outage_if_silent(clock_.now_ns());
    ASSERT_TRUE(begun);
    EXPECT_EQ(begun->began_ns, began_ns);
    EXPECT_EQ(begun->ended_ns, 0);
    EXPECT_FALSE(endpoint_.begin_outage_if_silent(clock_.now_ns()));
    clock_.advance_ns(4 * kSecond_ns);
    endpoint_.failed(": refused", ECONNREFUSED, clock_.now_ns());
    EXPECT_FALSE(endpoint_.begin_outage_if_silent(clock_.now_ns()));
    EXPECT_EQ(endpoint_.outage()->failures, 3u);

    const auto ended = endpoint_.answered(clock_.now_ns());
    ASSERT_TRUE(ended);
    EXPECT_TRUE(ended->ended_by_answer);
    EXPECT_EQ(ended->ended_ns - ended->began_ns, 5 * kSecond_ns);
    EXPECT_FALSE(endpoint_.answered(clock_.now_ns()));
    EXPECT_FALSE(endpoint_.outage());
}

TEST_F(HttpEndpointTest, OneFailureOrFailuresWithAnAnswerBetweenAreNoOutage) {
    clock_.advance_ns(kSecond_ns);
    endpoint_.failed(": reset", ECONNRESET, clock_.now_ns());
    clock_.advance_ns(10 * kSecond_ns);
    EXPECT_FALSE(endpoint_.begin_outage_if_silent(clock_.now_ns()));
    EXPECT_FALSE(endpoint_.answered(clock_.now_ns()));
    endpoint_.failed(": reset", ECONNRESET, clock_.now_ns());
    clock_.advance_ns(kSecond_ns / 2);
    endpoint_.failed(": reset", ECONNRESET, clock_.now_ns());
    EXPECT_FALSE(endpoint_.begin_outage_if_silent(clock_.now_ns()));
}

TEST_F(HttpEndpointTest, OutageWithoutRequestsIsForgotten) {
    clock_.advance_ns(kSecond_ns);
    endpoint_.failed(": refused", ECONNREFUSED, clock_.now_ns());
    clock_.advance_ns(kSecond_ns);
    endpoint_.failed(": refused", ECONNREFUSED, clock_.now_ns());
    ASSERT_TRUE(endpoint_.begin_outage_if_silent(clock_.now_ns()));
    clock_.advance_ns(HttpEndpointState::kOutageForgotten_ns);
    endpoint_.limit.started();
    EXPECT_FALSE(endpoint_.end_forgotten_outage(clock_.now_ns())) << "a try is under way";
    endpoint_.limit.ended();
    const auto forgotten = endpoint_.end_forgotten_outage(clock_.now_ns());
    ASSERT_TRUE(forgotten);
    EXPECT_FALSE(forgotten->ended_by_answer);
    EXPECT_FALSE(endpoint_.outage());
}

}  // namespace
}  // namespace larder::cache
