// The larder-allocator program: it serves on its socket and reports invalid arguments.

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/server/http.h"
#include "tests/support/program.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/tools/allocator_process.h"

extern char** environ;

namespace larder {
namespace {

constexpr const char* kReport =
    R"({"node":"a","instance":1,"lease_applied":0,"gpus":0,"memory_bytes":1000000,"disk_bytes":0,"datasets":[)"
    R"({"name":"images","size_bytes":4000000,"quota_memory_bytes":0,"quota_disk_bytes":0,"cached_memory_bytes":0,)"
    R"("cached_disk_bytes":0}],"jobs":[{"name":"vision","dataset":"images","ranks":1,"bytes":0,"busy_s":0,)"
    R"("demand_bytes_per_second":0,"unread_bytes":0,"unread_cached_bytes":0}]})";

// Starts larder-allocator on the socket and waits until it serves.
pid_t start(const std::string& socket, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {LARDER_ALLOCATOR_PROGRAM, "--socket", socket, "--remote-bandwidth",
                                          "100 MB/s"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_t pid = -1;
    EXPECT_EQ(::posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ), 0);
    while (!http_request(socket, "GET", "/healthz")) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return pid;
}

TEST(LarderAllocator, SighupReloadsTokens) {
    test::TempDirectory directory;
    const std::string tokens = directory / "tokens";
    const std::string log = directory / "log";
    const auto write_tokens = [&](const std::string& text) { ASSERT_TRUE(replace_file(tokens, text, 0600)); };
    write_tokens("viewer eye old-token-0123456789\n");
    const pid_t pid =
        start(directory / "allocator.sock", {"--listen", "127.0.0.1:0", "--access.tokens", tokens, "--log.file", log});
    std::string logged;
    // The log is written asynchronously.
    for (; logged.find(" tls=") == std::string::npos; logged = read_file(log).value_or("")) {
    }
    const std::string endpoint =
        "http://127.0.0.1:" + std::to_string(std::stoi(logged.substr(logged.find(" port=") + 6)));
    const auto status_with = [&](const std::string& token) {
        const auto answer = http_request(endpoint, "GET", "/v1/plan", {}, {.bearer_token = token});
        return answer ? answer->status : 0;
    };
    EXPECT_EQ(status_with("old-token-0123456789"), 200u);
    EXPECT_EQ(status_with("new-token-0123456789"), 401u);
    write_tokens("viewer eye new-token-0123456789\n");
    ::kill(pid, SIGHUP);
    while (status_with("new-token-0123456789") != 200u) {
    }
    EXPECT_EQ(status_with("old-token-0123456789"), 401u);
    ::kill(pid, SIGTERM);
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_EQ(read_file(log)->find("token-0123456789"), std::string::npos) << "no token is ever logged";
}

TEST(LarderAllocator, ServesUntilSigterm) {
    test::TempDirectory directory;
    const std::string socket = directory / "allocator.sock";
    const pid_t pid = start(socket, {"--log.level", "error"});

    const auto answer = http_request(socket, "POST", "/v1/reports", kReport);
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->status, 200u) << answer->body;
    EXPECT_NE(answer->body.find(R"("job":"vision","bytes_per_second":100000000)"), std::string::npos) << answer->body;
    const auto plan = http_request(socket, "GET", "/v1/plan");
    ASSERT_TRUE(plan.has_value());
    EXPECT_NE(plan->body.find(R"("steady_hit_ratio":0.25)"), std::string::npos) << plan->body;

    ::kill(pid, SIGTERM);
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_NE(::access(socket.c_str(), F_OK), 0) << "the program removes its socket";
}

TEST(LarderAllocator, InvalidArgumentsAreNamed) {
    const auto refusal = [](const std::vector<std::string>& arguments) {
        std::vector<std::string> all = {LARDER_ALLOCATOR_PROGRAM};
        all.insert(all.end(), arguments.begin(), arguments.end());
        const auto result = test::run_program(all);
        EXPECT_EQ(result.exit_code, 2) << result.errors;
        return result.output + result.errors;
    };
    EXPECT_NE(refusal({}).find("remote_bandwidth is missing"), std::string::npos);
    EXPECT_NE(refusal({"--remote-bandwidth", "1 Gbit"}).find("state and socket are missing"), std::string::npos);
    EXPECT_NE(refusal({"--socket", "/x", "--remote-bandwidth", "fast"}).find("--remote-bandwidth fast"),
              std::string::npos);
    EXPECT_NE(refusal({"--socket", "/x", "--remote-bandwidth", "1 Gbit", "--floor=-1"}).find("--floor -1"),
              std::string::npos);
    EXPECT_NE(refusal({"--socket", "/x", "--remote-bandwidth", "1 Gbit", "--objective", "luck"}).find("luck"),
              std::string::npos);
    EXPECT_NE(
        refusal({"--socket", "/x", "--remote-bandwidth", "1 Gbit", "--lense", "1 s"}).find("did you mean \"lease\""),
        std::string::npos);
}

TEST(LarderAllocator, FailedStartIsReportedOnce) {
    const test::TempDirectory directory;
    const auto failed = test::run_program(
        {LARDER_ALLOCATOR_PROGRAM, "--socket", directory / "no/such/a.sock", "--remote-bandwidth", "1 Gbit"});
    EXPECT_EQ(failed.exit_code, 1);
    const std::size_t first = failed.errors.find("a.sock");
    ASSERT_NE(first, std::string::npos) << failed.errors;
    EXPECT_EQ(failed.errors.find("a.sock", first + 1), std::string::npos) << failed.errors;
}

TEST(LarderAllocator, CheckCoversFileOfCells) {
    const test::TempDirectory directory;
    const std::string file = directory / "cells.toml";
    const auto check = [&](const std::string& cells, const std::vector<std::string>& tenants) {
        std::ofstream(file)
            << "[[hierarchy]]\nname = \"box\"\ngpu_type = \"gpu\"\nlevels = [{ name = \"box\", of = 4 }]\n"
               "node = \"box\"\nnodes = [\"n1\"]\n"
            << cells;
        std::vector<std::string> all = {LARDER_ALLOCATOR_PROGRAM, "--check", "--state",           directory / "state",
                                        "--remote-bandwidth",     "1 Gbit",  "--scheduler.cells", file};
        for (const std::string& tenant : tenants) {
            all.insert(all.end(), {"--scheduler.tenant." + tenant + ".weight", "1"});
        }
        return test::run_program(all);
    };
    const auto owns = [](const char* name, int boxes) {
        return "[[virtual_cluster]]\nname = \"" + std::string(name) +
               "\"\ncells = [{ hierarchy = \"box\", level = \"box\", count = " + std::to_string(boxes) + " }]\n";
    };
    EXPECT_EQ(check(owns("red", 1), {"red", "blue"}).exit_code, 0);
    EXPECT_EQ(check(owns("default", 1), {}).exit_code, 0);
    const auto over_committed = check(owns("red", 2), {"red"});
    EXPECT_EQ(over_committed.exit_code, 2);
    EXPECT_NE(over_committed.errors.find(file), std::string::npos) << over_committed.errors;
    const auto unowned = check(owns("red", 1), {"blue"});
    EXPECT_EQ(unowned.exit_code, 2);
    EXPECT_NE(unowned.errors.find("virtual_cluster \"red\" is not a tenant"), std::string::npos) << unowned.errors;
    const auto missing = test::run_program({LARDER_ALLOCATOR_PROGRAM, "--check", "--state", directory / "state",
                                            "--remote-bandwidth", "1 Gbit", "--scheduler.cells", "/nowhere/cells"});
    EXPECT_NE(missing.exit_code, 0);
    EXPECT_NE(missing.errors.find("/nowhere/cells"), std::string::npos) << missing.errors;
}

TEST(LarderAllocator, ObjectiveFollowsPolicyUnlessSet) {
    const auto objective = [](const std::vector<std::string>& more) {
        const test::AllocatorProcess allocator(more);
        allocator.report();
        const auto plan = http_request(allocator.socket, "GET", "/v1/plan");
        if (!plan) return plan.error().message;
        const std::size_t at = plan->body.find("\"objective\":\"");
        return at == std::string::npos ? plan->body
                                       : plan->body.substr(at + 13, plan->body.find('"', at + 13) - at - 13);
    };
    const test::TempDirectory directory;
    const auto with_jobs = [&](std::vector<std::string> more) {
        more.insert(more.end(), {"--scheduler.gpus", "1", "--scheduler.directory", directory / "jobs"});
        return objective(more);
    };
    EXPECT_EQ(objective({}), "max-min");
    EXPECT_EQ(with_jobs({}), "efficiency");
    EXPECT_EQ(with_jobs({"--scheduler.policy", "fifo"}), "throughput");
    EXPECT_EQ(with_jobs({"--scheduler.policy", "max-min"}), "max-min");
    EXPECT_EQ(with_jobs({"--objective", "utilisation"}), "utilisation");
}

TEST(LarderAllocator, SocketThatCannotBeCreatedIsAnError) {
    const auto result =
        test::run_program({LARDER_ALLOCATOR_PROGRAM, "--socket", "/nowhere/a.sock", "--remote-bandwidth", "1 Gbit"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.errors.find("/nowhere/a.sock"), std::string::npos) << result.errors;
}

}  // namespace
}  // namespace larder
