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
    bool is_given_up(std::int64_t submitted_ns) { return endpoint_.is_given_up(submitted_ns, kRetryFor_ns); }

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
    endpoint_.failed(": timed out", ETIMEDOUT, clock_.now_ns());
    EXPECT_TRUE(is_given_up(submitted_ns));
    EXPECT_FALSE(is_given_up(clock_.now_ns() - kRetryFor_ns)) << "a request submitted later has its full retry time";
}

// The endpoint may be well again by the time of the next try.
TEST_F(HttpEndpointTest, TimeWithoutATryGivesUpNoRequest) {
    clock_.advance_ns(kSecond_ns);
    const std::int64_t submitted_ns = clock_.now_ns();
    endpoint_.failed(": HTTP 500", EIO, clock_.now_ns());
    clock_.advance_ns(kRetryFor_ns);
    endpoint_.failed(": HTTP 500", EIO, clock_.now_ns());
    clock_.advance_ns(HttpEndpointState::kBackoffMost_ns);
    EXPECT_FALSE(is_given_up(submitted_ns));
    endpoint_.failed(": HTTP 500", EIO, clock_.now_ns());
    EXPECT_TRUE(is_given_up(submitted_ns));
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

// Many blocks wait, and each try fails at once.
TEST_F(HttpEndpointTest, SilentEndpointIsTriedAFewTimesASecondAndItsAnswerIsSeenWithinASecond) {
    for (const std::int64_t outage_ns : {kSecond_ns / 2, 2 * kSecond_ns, 10 * kSecond_ns, 100 * kSecond_ns}) {
        clock_.advance_ns(kSecond_ns);
        const std::int64_t began_ns = clock_.now_ns();
        unsigned tries = 0;
        std::int64_t last_ns = began_ns;
        while (clock_.now_ns() - began_ns < outage_ns) {
            if (endpoint_.next_try_ns() <= clock_.now_ns()) {
                endpoint_.try_started(tries % 2 == 0 ? 0 : ~std::uint64_t{0} >> 1, clock_.now_ns());
                endpoint_.failed(": refused", ECONNREFUSED, clock_.now_ns());
                ++tries;
                last_ns = clock_.now_ns();
            }
            clock_.advance_ns(kSecond_ns / 1000);
        }
        EXPECT_LE(tries, 30 + 2 * outage_ns / kSecond_ns) << outage_ns;
        EXPECT_GE(tries, HttpEndpointState::kFailuresBeforeBackoff);
        EXPECT_LE(endpoint_.next_try_ns() - last_ns, std::min(kSecond_ns, outage_ns / 2)) << outage_ns;
        (void)endpoint_.answered(clock_.now_ns());
        EXPECT_EQ(endpoint_.next_try_ns(), 0) << "the endpoint answers again";
    }
}

TEST_F(HttpEndpointTest, FewFailuresOfAFlakyEndpointDelayNoOtherRequest) {
    clock_.advance_ns(kSecond_ns);
    for (int i = 0; i < 100; ++i) {
        for (std::uint64_t f = 1; f < HttpEndpointState::kFailuresBeforeBackoff; ++f) {
            endpoint_.try_started(0, clock_.now_ns());
            endpoint_.failed(": HTTP 500", EIO, clock_.now_ns());
            ASSERT_EQ(endpoint_.next_try_ns(), 0);
        }
        (void)endpoint_.answered(clock_.now_ns());
    }
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
