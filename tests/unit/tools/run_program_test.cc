#include "tools/cli/run_program.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>

namespace larder::cli {
namespace {

TEST(RunProgram, GivesInputAndReturnsOutputAndErrors) {
    const std::string input(5'000'000, 'x');
    const auto ran = run_program_for_all({"sh", "-c", "cat; printf wrong >&2; exit 3"}, input);
    ASSERT_TRUE(ran) << ran.error().message;
    EXPECT_EQ(ran->status, 3);
    EXPECT_EQ(ran->output, input);
    EXPECT_EQ(ran->errors, "wrong");
}

TEST(RunProgram, StatusOtherThanZeroIsErrorOfRunProgram) {
    EXPECT_EQ(run_program({"printf", "%s", "text"}).value(), "text");
    EXPECT_EQ(run_program({"false"}).error().message, "false ended with status 1");
}

TEST(RunProgram, SignalIsAStatusAbove128) {
    EXPECT_EQ(run_program_for_all({"sh", "-c", "kill -TERM $$"})->status, 128 + SIGTERM);
}

TEST(RunProgram, MissingProgramIsNotFound) {
    const auto ran = run_program_for_all({"larder-no-such-program"});
    ASSERT_FALSE(ran);
    EXPECT_EQ(ran.error().code, ErrorCode::not_found);
    EXPECT_EQ(ran.error().message, "larder-no-such-program is not installed");
}

TEST(RunProgram, ProgramThatDoesNotEndIsKilled) {
    const auto ran = run_program_for_all({"sleep", "100000"}, "", std::chrono::seconds(1));
    ASSERT_FALSE(ran);
    EXPECT_EQ(ran.error().code, ErrorCode::unavailable);
    EXPECT_EQ(ran.error().message, "sleep has not ended within 1 s, and is killed");
}

TEST(RunProgram, GrandchildIsNotWaitedFor) {
    const auto ran = run_program_for_all({"sh", "-c", "sleep 100000 & echo $!"}, "", std::chrono::seconds(60));
    ASSERT_TRUE(ran) << ran.error().message;
    const pid_t grandchild = std::stoi(ran->output);
    EXPECT_EQ(::kill(grandchild, SIGKILL), 0);
}

}  // namespace
}  // namespace larder::cli
