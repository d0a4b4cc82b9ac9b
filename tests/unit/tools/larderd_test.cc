// The `larderd` program: how it checks its config.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/program.h"
#include "tests/support/temp_directory.h"

namespace larder {
namespace {

using ::testing::HasSubstr;

TEST(LarderdProgram, CheckReportsConfigErrors) {
    const test::TempDirectory directory;
    const auto larderd = [](std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), LARDERD_PROGRAM);
        return test::run_program(arguments);
    };
    std::ofstream(directory / "good.toml") << "memory = \"1 GiB\"\n[job.\"a-b_c\"]\nremote_rate = \"1 MB/s\"\n";
    std::ofstream(directory / "bad.toml") << "\nmemory = \"1 gib\"\n";
    const auto good = larderd({"--config", directory / "good.toml", "--check", "--log.level=debug",
                               "--job.a-b_c.remote-rate", "2 MB/s", "--dataset.x.url", "file:///x"});
    EXPECT_EQ(good.exit_code, 0) << good.errors;
    const auto bad = larderd({"--config", directory / "bad.toml", "--check"});
    EXPECT_EQ(bad.exit_code, 2);
    EXPECT_THAT(bad.errors, HasSubstr("bad.toml:2: memory = \"1 gib\": expected a size"));
    std::ofstream(directory / "too_much.toml") << "memory = \"2000TiB\"\n";
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{"--check"}, {"--state-directory", directory / "state"}}) {
        auto too_much = arguments;
        too_much.insert(too_much.end(), {"--config", directory / "too_much.toml"});
        const auto refused = larderd(too_much);
        EXPECT_EQ(refused.exit_code, 2) << refused.errors;
        EXPECT_THAT(refused.errors, HasSubstr("memory = 1.95 PiB is more than there is: "));
    }
    std::ofstream(directory / "stranger.toml") << "[dataset.x]\nurl = \"file:///x\"\nowner = \"nobody-here\"\n";
    const auto stranger = larderd({"--config", directory / "stranger.toml", "--check"});
    EXPECT_EQ(stranger.exit_code, 2);
    EXPECT_THAT(stranger.errors, HasSubstr("dataset \"x\" of the config: owner: user \"nobody-here\" is unknown"));
    const auto missing = larderd({"--config", directory / "none.toml"});
    EXPECT_EQ(missing.exit_code, 1);
    EXPECT_THAT(missing.errors, HasSubstr("none.toml"));
    const auto flag = larderd({"--check", "--log.level", "loud"});
    EXPECT_EQ(flag.exit_code, 2);
    EXPECT_THAT(flag.errors, HasSubstr("--log.level loud: expected \"trace\""));
    EXPECT_EQ(larderd({"--check", "--nonsense"}).exit_code, 2);
    EXPECT_EQ(larderd({"--check", "stray"}).exit_code, 2);
    EXPECT_THAT(larderd({"--help"}).output, HasSubstr("--session.count-max VALUE"));
}

}  // namespace
}  // namespace larder
