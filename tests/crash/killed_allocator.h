#pragma once

// A real larder-allocator that is killed and started anew on the same state, again and again.

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/server/http_client.h"

namespace larder::test {

class KilledAllocator {
public:
    // `environment` is added to this process's.
    KilledAllocator(std::string state, std::vector<std::string> options,
                    std::vector<std::pair<std::string, std::string>> environment = {})
        : state_(std::move(state)), options_(std::move(options)), environment_(std::move(environment)) {
        start();
    }
    ~KilledAllocator() { end(SIGTERM); }

    // `between`: done while it is dead.
    void kill_and_restart(const std::function<void()>& between = {}) {
        end(SIGKILL);
        if (between) between();
        start();
    }
    // Not waited for: it may be killed before it serves.
    void kill_and_spawn() {
        end(SIGKILL);
        spawn();
    }
    std::string socket() const { return state_ + "/allocator.sock"; }
    void wait_until_it_serves() const {
        while (!http_request(socket(), "GET", "/healthz")) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }

private:
    void start() {
        spawn();
        wait_until_it_serves();
    }
    void spawn() {
        std::vector<std::string> arguments = {
            LARDER_ALLOCATOR_PROGRAM, "--state", state_, "--lease", "1 s", "--log.level", "error",
            // All of this comes from one peer.
            "--limits.requests-per-second-per-peer", "1000000", "--limits.request-burst-per-peer", "1000000"};
        arguments.insert(arguments.end(), options_.begin(), options_.end());
        std::vector<char*> argv;
        for (std::string& argument : arguments) argv.push_back(argument.data());
        argv.push_back(nullptr);
        std::vector<std::string> variables;
        for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
        for (const auto& [name, value] : environment_) variables.push_back(name + "=" + value);
        std::vector<char*> envp;
        for (std::string& variable : variables) envp.push_back(variable.data());
        envp.push_back(nullptr);
        ASSERT_EQ(::posix_spawn(&pid_, argv[0], nullptr, nullptr, argv.data(), envp.data()), 0);
    }
    void end(int signal) {
        ::kill(pid_, signal);
        int status = 0;
        ASSERT_EQ(::waitpid(pid_, &status, 0), pid_);
        // What it was not killed by is a crash of its own.
        ASSERT_TRUE(signal == SIGKILL ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : WIFEXITED(status));
    }

    std::string state_;
    std::vector<std::string> options_;
    std::vector<std::pair<std::string, std::string>> environment_;
    pid_t pid_ = -1;
};

}  // namespace larder::test
