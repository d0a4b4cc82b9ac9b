#pragma once

// A larder-allocator on its own socket, for one test. The destructor ends it. Its nodes are those that the test
// reports.

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/server/http.h"
#include "tests/support/temp_directory.h"

extern char** environ;

namespace larder::test {

class AllocatorProcess {
public:
    explicit AllocatorProcess(const std::vector<std::string>& more = {}) {
        std::vector<std::string> arguments = {
            LARDER_ALLOCATOR_PROGRAM, "--socket", socket, "--remote-bandwidth", "100 MB/s", "--log.level", "error"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        std::vector<char*> argv;
        argv.reserve(arguments.size() + 1);
        for (std::string& argument : arguments) argv.push_back(argument.data());
        argv.push_back(nullptr);
        EXPECT_EQ(::posix_spawn(&pid_, argv[0], nullptr, nullptr, argv.data(), environ), 0);
        while (!http_request(socket, "GET", "/healthz")) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ~AllocatorProcess() {
        ::kill(pid_, SIGTERM);
        int status = 0;
        ::waitpid(pid_, &status, 0);
    }
    AllocatorProcess(const AllocatorProcess&) = delete;
    AllocatorProcess& operator=(const AllocatorProcess&) = delete;

    // Reports node "a" with 1 MB of memory and job "vision" on it, which reads the 4 MB of "images".
    void report() const {
        const auto answer = http_request(
            socket, "POST", "/v1/reports",
            R"({"node":"a","instance":1,"lease_applied":0,"gpus":0,"memory_bytes":1000000,"disk_bytes":0,"datasets":[)"
            R"({"name":"images","size_bytes":4000000,"quota_memory_bytes":0,"quota_disk_bytes":0,)"
            R"("cached_memory_bytes":0,"cached_disk_bytes":0}],"jobs":[{"name":"vision","dataset":"images","ranks":1,)"
            R"("bytes":0,"busy_s":0,"demand_bytes_per_second":0,"unread_bytes":0,"unread_cached_bytes":0}]})");
        ASSERT_TRUE(answer.has_value()) << answer.error().message;
        ASSERT_EQ(answer->status, 200u) << answer->body;
    }

    TempDirectory directory;
    const std::string socket = directory / "allocator.sock";

private:
    pid_t pid_ = -1;
};

}  // namespace larder::test
