// The real daemon ends on SIGTERM while the mount that a dataset lives on hangs.

#include <boost/json.hpp>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/server/http.h"
#include "tests/support/hung_mount.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"

namespace larder {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kEndWithin{60};  // far more than the daemon waits for anything

struct HungWork {
    const char* name;
    const char* io;
    const char* task;  // what asks the mount
};

class HungRemote : public testing::TestWithParam<HungWork> {
protected:
    ~HungRemote() override {
        hung.reset();
        if (pid <= 0) return;
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
    }

    void start() {
        // The search for leaks stops all threads, and a thread in a call to a hung mount cannot be stopped.
        const char* options = std::getenv("ASAN_OPTIONS");
        ::setenv("ASAN_OPTIONS", (std::string(options != nullptr ? options : "") + ":detect_leaks=0").c_str(), 1);
        std::vector<std::string> arguments = {
            LARDERD_PROGRAM, "--state-directory", state,         "--memory", "64 MiB", "--disk", "64 MiB",
            "--io",          GetParam().io,       "--log.level", "error"};
        std::vector<char*> argv;
        for (std::string& argument : arguments) argv.push_back(argument.data());
        argv.push_back(nullptr);
        ASSERT_EQ(::posix_spawn(&pid, LARDERD_PROGRAM, nullptr, nullptr, argv.data(), environ), 0);
        while (ask("GET", "/healthz").empty()) std::this_thread::sleep_for(milliseconds(2));
    }

    std::string ask(std::string_view method, const std::string& target, std::string_view body = {}) const {
        const auto answer = http_request(state + "/admin.sock", method, target, body);
        return answer && answer->status < 300 ? answer->body : "";
    }

    // Starts a task of the dataset, and returns its path.
    std::string start_task(const std::string& target, std::string_view body) const {
        const std::string answer = ask("POST", target, body);
        if (answer.empty()) return {};
        return "/v1/tasks/" + std::to_string(boost::json::parse(answer).at("task").to_number<std::uint64_t>());
    }

    std::string state_of(const std::string& task) const {
        return std::string(boost::json::parse(ask("GET", task)).at("state").as_string());
    }

    // Returns the status of the daemon, or -1 if it does not end.
    int wait_for_end() {
        const auto until = std::chrono::steady_clock::now() + kEndWithin;
        while (std::chrono::steady_clock::now() < until) {
            int status = 0;
            if (::waitpid(pid, &status, WNOHANG) == pid) {
                pid = -1;
                return status;
            }
            std::this_thread::sleep_for(milliseconds(10));
        }
        return -1;
    }

    test::TempDirectory directory;
    const std::string state = directory / "state";
    const std::string remote = directory / "remote";
    std::unique_ptr<test::HungMount> hung;
    pid_t pid = -1;
};

TEST_P(HungRemote, DaemonEndsOnSigterm) {
    test::make_tree(remote, {.class_count = 1, .files_per_class = 50});
    ASSERT_NO_FATAL_FAILURE(start());
    const std::string added = start_task("/v1/datasets", R"({"name":"d","url":"file://)" + remote +
                                                             R"(","quota":{"memory_bytes":0,"disk_bytes":33554432}})");
    ASSERT_FALSE(added.empty());
    while (state_of(added) == "running") std::this_thread::sleep_for(milliseconds(2));
    hung = std::make_unique<test::HungMount>(remote);
    if (!hung->mounted()) GTEST_SKIP() << "no FUSE file system may be mounted";
    const std::string task = start_task(std::string("/v1/datasets/d/") + GetParam().task, "{}");
    ASSERT_FALSE(task.empty());
    while (!hung->is_asked()) std::this_thread::sleep_for(milliseconds(2));
    EXPECT_EQ(state_of(task), "running");

    ::kill(pid, SIGTERM);
    const int status = wait_for_end();
    ASSERT_NE(status, -1) << "the daemon waits for the mount";
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    // Nothing is left to repair.
    hung.reset();
    ASSERT_NO_FATAL_FAILURE(start());
    const auto dataset = boost::json::parse(ask("GET", "/v1/datasets/d"));
    EXPECT_TRUE(dataset.at("offline").is_null()) << boost::json::serialize(dataset);
    ::kill(pid, SIGTERM);
    EXPECT_EQ(wait_for_end(), 0);
}

// "warm" reads in the data plane, "index" in a thread of its own.
INSTANTIATE_TEST_SUITE_P(Io, HungRemote,
                         testing::Values(HungWork{"ReadsOfTheRing", "ring", "warm"},
                                         HungWork{"ReadsOfThreads", "threads", "warm"},
                                         HungWork{"Indexing", "threads", "index"}),
                         [](const testing::TestParamInfo<HungWork>& tested) { return tested.param.name; });

}  // namespace
}  // namespace larder
