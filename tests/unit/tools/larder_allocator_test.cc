// The larder-allocator program: it serves on its socket, and says what is wrong with how it is called.

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "base/server/http.h"
#include "tests/support/program.h"
#include "tests/support/temp_directory.h"

extern char** environ;

namespace larder {
namespace {

constexpr const char* kReport =
    R"({"node":"a","instance":1,"lease_applied":0,"gpus":0,"memory_bytes":1000000,"disk_bytes":0,"datasets":[)"
    R"({"name":"images","size_bytes":4000000,"quota_memory_bytes":0,"quota_disk_bytes":0,"cached_memory_bytes":0,)"
    R"("cached_disk_bytes":0}],"jobs":[{"name":"vision","dataset":"images","ranks":1,"bytes":0,"busy_s":0,)"
    R"("demand_bytes_per_second":0,"unread_bytes":0,"unread_cached_bytes":0}]})";

TEST(LarderAllocator, ServesUntilItIsAskedToEnd) {
    test::TempDirectory directory;
    const std::string socket = directory / "allocator.sock";
    std::vector<std::string> arguments = {
        LARDER_ALLOCATOR_PROGRAM, "--socket", socket, "--remote-bandwidth", "100 MB/s", "--log-level", "error"};
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_t pid = -1;
    ASSERT_EQ(::posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ), 0);
    while (!http_request(socket, "GET", "/healthz")) std::this_thread::sleep_for(std::chrono::milliseconds(2));

    const auto answer = http_request(socket, "POST", "/v1/reports", kReport);
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->status, 200u) << answer->body;
    EXPECT_NE(answer->body.find(R"("job":"vision","bytes_per_second":1E8)"), std::string::npos) << answer->body;
    const auto plan = http_request(socket, "GET", "/v1/plan");
    ASSERT_TRUE(plan.has_value());
    EXPECT_NE(plan->body.find(R"("steady_hit_ratio":2.5E-1)"), std::string::npos) << plan->body;

    ::kill(pid, SIGTERM);
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_NE(::access(socket.c_str(), F_OK), 0) << "the socket goes with it";
}

TEST(LarderAllocator, SaysWhatIsWrongWithItsArguments) {
    const auto wrong = [](const std::vector<std::string>& arguments) {
        std::vector<std::string> all = {LARDER_ALLOCATOR_PROGRAM};
        all.insert(all.end(), arguments.begin(), arguments.end());
        const auto result = test::run_program(all);
        EXPECT_EQ(result.exit_code, 2) << result.errors;
        return result.output + result.errors;
    };
    EXPECT_NE(wrong({}).find("--socket is required"), std::string::npos);
    EXPECT_NE(wrong({"--socket", "/x", "--remote-bandwidth", "fast"}).find("--remote-bandwidth"), std::string::npos);
    EXPECT_NE(wrong({"--socket", "/x", "--remote-bandwidth", "1 Gbit", "--floor", "-1"}).find("--floor"),
              std::string::npos);
    EXPECT_NE(wrong({"--socket", "/x", "--remote-bandwidth", "1 Gbit", "--objective", "luck"}).find("luck"),
              std::string::npos);
}

TEST(LarderAllocator, ASocketItCannotMakeIsAnError) {
    const auto result =
        test::run_program({LARDER_ALLOCATOR_PROGRAM, "--socket", "/nowhere/a.sock", "--remote-bandwidth", "1 Gbit"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.errors.find("/nowhere/a.sock"), std::string::npos) << result.errors;
}

}  // namespace
}  // namespace larder
