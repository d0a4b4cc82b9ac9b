// Calls that wait because the system has no thread for them.

#include "base/server/blocking_calls.h"

#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/support/thread_limit.h"

namespace larder {
namespace {

constexpr std::int64_t kLong_ns = 30'000'000'000;

void call_while_control_runs() {
    test::forbid_threads();
    boost::asio::io_context control{1};
    BlockingCalls calls(control, "test");
    int done = 0;
    for (int i = 0; i < 3; ++i) calls.run([&]() -> BlockingCalls::Then { return [&] { ++done; }; });
    control.run_for(std::chrono::milliseconds(300));
    EXPECT_EQ(done, 0);
    test::allow_threads();
    control.restart();
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kLong_ns);
    while (done < 3 && std::chrono::steady_clock::now() < until) {
        if (control.run_one_for(std::chrono::milliseconds(10)) == 0) control.restart();
    }
    EXPECT_EQ(done, 3);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
}

void call_before_control_runs() {
    test::forbid_threads();
    boost::asio::io_context control{1};
    BlockingCalls calls(control, "test");
    bool done = false;
    calls.run([&]() -> BlockingCalls::Then { return [&] { done = true; }; });
    EXPECT_FALSE(calls.wait(1'000'000));
    test::allow_threads();
    EXPECT_TRUE(calls.wait(kLong_ns));
    control.poll();
    EXPECT_TRUE(done);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
}

// In new processes, because a process without threads stays one.
TEST(BlockingCallsTest, CallsWithoutThreadRunOnceThereIsOne) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(call_while_control_runs(), testing::ExitedWithCode(0), "");
}

TEST(BlockingCallsTest, WaitingStartsTheThreadThatCouldNotBeStarted) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(call_before_control_runs(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace larder
