#include "base/server/logging.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>
#include <vector>

#include "base/file.h"
#include "tests/support/temp_directory.h"

namespace larder {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::vector<std::string> lines_of(const std::string& path) {
    std::ifstream file(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
}

class LoggingTest : public ::testing::Test {
protected:
    void start(LogLevel level = LogLevel::info) {
        const auto started = start_logging({level, file});
        ASSERT_TRUE(started) << started.error().message;
    }
    void TearDown() override { stop_logging(); }

    test::TempDirectory directory;
    std::string file = directory / "larder.log";
};

TEST_F(LoggingTest, WritesMessageAndFields) {
    start();
    log_info("dataset added", {{"dataset", std::string("images")},
                               {"blocks", 123},
                               {"bytes", std::uint64_t{1} << 63},
                               {"delta", -5},
                               {"ratio", 0.25},
                               {"ready", true},
                               {"note", "two words"}});
    const auto lines = lines_of(file);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_THAT(lines[0], MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}[.][0-9]{3}Z info +dataset added .*"));
    EXPECT_THAT(lines[0], EndsWith(" dataset added dataset=images blocks=123 bytes=9223372036854775808 delta=-5 "
                                   "ratio=0.25 ready=true note=\"two words\""));
}

TEST_F(LoggingTest, OmitsLinesBelowTheConfiguredLevel) {
    start(LogLevel::warn);
    log_debug("one");
    log_info("two");
    log_warn("three");
    log_error("four");
    EXPECT_THAT(lines_of(file), ElementsAre(EndsWith("warning three"), EndsWith("error   four")));
    start(LogLevel::debug);
    log_debug("five");
    EXPECT_THAT(lines_of(file).back(), EndsWith("five"));
    EXPECT_EQ(lines_of(file).size(), 3u) << "a log that is opened again is appended to";
}

TEST_F(LoggingTest, ValuesCannotForgeALine) {
    start();
    log_info("a\nb", {{"name", "x\n2020-01-01 error y"}, {"quote", "say \"hi\"\\"}, {"empty", ""}, {"bell", "\x07"}});
    const auto lines = lines_of(file);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_THAT(lines[0], EndsWith(" a\\nb name=\"x\\n2020-01-01 error y\" quote=\"say \\\"hi\\\"\\\\\" empty=\"\" "
                                   "bell=\\x07"));
}

TEST_F(LoggingTest, NonWaitingThreadsLoseNothingWhileTheQueueHasRoom) {
    start();
    std::thread([] {
        log_without_waiting();
        for (int i = 0; i < 1000; ++i) log_info("tick", {{"i", i}});
    }).join();
    stop_logging();  // writes out the queue
    const auto lines = lines_of(file);
    ASSERT_EQ(lines.size(), 1000u);
    EXPECT_THAT(lines[0], EndsWith("i=0"));
    EXPECT_THAT(lines[999], EndsWith("i=999"));
}

TEST_F(LoggingTest, FullQueueDropsAndCountsItsOldestLines) {
    // A FIFO without a reader blocks the writer after 64 KiB.
    const std::string fifo = directory / "fifo";
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    const int keep_open = ::open(fifo.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(keep_open, 0);
    const FileDescriptor reader(keep_open);
    ASSERT_TRUE(start_logging({LogLevel::info, fifo}));
    const std::uint64_t dropped_before = log_lines_dropped();
    constexpr int lines = 20'000;
    std::thread([] {
        log_without_waiting();
        for (int i = 0; i < lines; ++i) log_info("a line that is long enough to fill the pipe", {{"i", i}});
    }).join();
    const std::uint64_t dropped = log_lines_dropped() - dropped_before;
    EXPECT_GT(dropped, 0u);
    std::string content;
    std::thread drain([&] {
        char buffer[65536];
        while (content.find("the last line") == std::string::npos) {
            const ssize_t got = ::read(reader.get(), buffer, sizeof buffer);
            if (got > 0) content.append(buffer, static_cast<std::size_t>(got));
        }
    });
    stop_logging();
    ASSERT_TRUE(start_logging({LogLevel::info, fifo}));
    log_info("the last line");
    drain.join();
    const auto arrived = std::count(content.begin(), content.end(), '\n') - 1;
    EXPECT_EQ(static_cast<std::uint64_t>(arrived) + dropped, static_cast<std::uint64_t>(lines));
    EXPECT_THAT(content, HasSubstr("i=19999"));
}

TEST_F(LoggingTest, UnopenableFileIsAnErrorAndChangesNothing) {
    start();
    std::ofstream(directory / "plain") << "x";
    const auto blocked = start_logging({LogLevel::error, directory / "plain/x.log"});
    ASSERT_FALSE(blocked);
    EXPECT_THAT(blocked.error().message, HasSubstr("plain/x.log"));
    log_info("still here");
    EXPECT_THAT(lines_of(file), ElementsAre(EndsWith("still here")));
}

TEST(LogLevels, KnownNamesParseAndOthersAreErrors) {
    EXPECT_EQ(*parse_log_level("trace"), LogLevel::trace);
    EXPECT_EQ(*parse_log_level("error"), LogLevel::error);
    for (const char* wrong : {"", "INFO", "loud", "warning"}) {
        const auto parsed = parse_log_level(wrong);
        ASSERT_FALSE(parsed) << wrong;
        EXPECT_THAT(parsed.error().message, HasSubstr("trace, debug, info, warn or error"));
    }
}

}  // namespace
}  // namespace larder
