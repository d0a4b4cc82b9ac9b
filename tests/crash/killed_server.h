#pragma once

// A real program that serves on a Unix socket, killed and restarted on the same state again and again.

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

class KilledServer {
public:
    // `socket`: where the program answers once it serves. `environment` is added to this process's.
    KilledServer(std::vector<std::string> arguments, std::string socket,
                 std::vector<std::pair<std::string, std::string>> environment = {})
        : arguments_(std::move(arguments)), socket_(std::move(socket)), environment_(std::move(environment)) {
        start();
    }
    ~KilledServer() { end(SIGTERM); }

    // `between` runs while the program is dead.
    void kill_and_restart(const std::function<void()>& between = {}) {
        end(SIGKILL);
        if (between) between();
        start();
    }
    // Does not wait until the new process serves, so that process may be killed before it does.
    void kill_and_spawn() {
        end(SIGKILL);
        spawn();
    }
    // Stops the process for a while, as a busy machine does.
    void pause(std::chrono::milliseconds duration) {
        ::kill(pid_, SIGSTOP);
        std::this_thread::sleep_for(duration);
        ::kill(pid_, SIGCONT);
    }
    const std::string& socket() const { return socket_; }
    void wait_until_it_serves() const {
        while (!http_request(socket_, "GET", "/healthz")) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }

private:
    void start() {
        spawn();
        wait_until_it_serves();
    }
    void spawn() {
        std::vector<std::string> variables;
        for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
        for (const auto& [name, value] : environment_) variables.push_back(name + "=" + value);
        const auto pointers = [](std::vector<std::string>& texts) {
            std::vector<char*> list;
            for (std::string& text : texts) list.push_back(text.data());
            list.push_back(nullptr);
            return list;
        };
        ASSERT_EQ(::posix_spawn(&pid_, arguments_.front().c_str(), nullptr, nullptr, pointers(arguments_).data(),
                                pointers(variables).data()),
                  0);
    }
    void end(int signal) {
        ::kill(pid_, signal);
        int status = 0;
        ASSERT_EQ(::waitpid(pid_, &status, 0), pid_);
        // Any other end is a crash of the program.
        ASSERT_TRUE(signal == SIGKILL ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : WIFEXITED(status));
    }

    std::vector<std::string> arguments_;
    std::string socket_;
    std::vector<std::pair<std::string, std::string>> environment_;
    pid_t pid_ = -1;
};

// Returns the arguments of a larder-allocator with its state at `state`. Its limits let one peer send all requests.
inline std::vector<std::string> allocator_arguments(const std::string& state, const std::vector<std::string>& options) {
    std::vector<std::string> arguments = {LARDER_ALLOCATOR_PROGRAM,
                                          "--state",
                                          state,
                                          "--lease",
                                          "3 s",
                                          "--log.level",
                                          "error",
                                          "--limits.requests-per-second-per-peer",
                                          "1000000",
                                          "--limits.request-burst-per-peer",
                                          "1000000"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return arguments;
}

class KilledAllocator : public KilledServer {
public:
    KilledAllocator(const std::string& state, const std::vector<std::string>& options,
                    std::vector<std::pair<std::string, std::string>> environment = {})
        : KilledServer(allocator_arguments(state, options), state + "/allocator.sock", std::move(environment)) {}
};

}  // namespace larder::test
