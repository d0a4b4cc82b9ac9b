#include "tools/simulate/parallel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <thread>

#include "base/file.h"

namespace larder::cli {
namespace {

struct Running {
    std::size_t task = 0;
    pid_t pid = 0;
    FileDescriptor output;
    std::string text;
};

bool write_all(int fd, std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(fd, text.data(), text.size());
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        text.remove_prefix(static_cast<std::size_t>(written));
    }
    return true;
}

// Runs a task and writes its result. First byte: 0 for a result, 1 for an error's message.
[[noreturn]] void run_child(int fd, std::size_t task, const std::function<Result<std::string>(std::size_t)>& run) {
    const auto result = run(task);
    const std::string text = result ? std::string(1, '\0') + *result : std::string(1, '\1') + result.error().message;
    ::_exit(write_all(fd, text) ? 0 : 1);
}

Result<Running> start(std::size_t task, const std::function<Result<std::string>(std::size_t)>& run) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno(errno, "create a pipe");
    FileDescriptor read_end(ends[0]);
    const FileDescriptor write_end(ends[1]);
    const pid_t pid = ::fork();
    if (pid < 0) return fail_errno(errno, "fork");
    if (pid == 0) run_child(write_end.get(), task, run);
    return Running{.task = task, .pid = pid, .output = std::move(read_end), .text = {}};
}

// Reads the available data. Returns true once the output has ended.
bool drain(Running& child) {
    char buffer[65536];
    const ssize_t got = ::read(child.output.get(), buffer, sizeof buffer);
    if (got < 0) return errno != EINTR;
    child.text.append(buffer, static_cast<std::size_t>(got));
    return got == 0;
}

Result<std::string> wait_for_result(Running& child) {
    int status = 0;
    while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || child.text.empty()) {
        return fail(ErrorCode::internal,
                    "simulation " + std::to_string(child.task + 1) + " died, status " + std::to_string(status));
    }
    std::string text = child.text.substr(1);
    if (child.text[0] != '\0') return fail(ErrorCode::invalid_argument, text);
    return text;
}

}  // namespace

Result<std::vector<std::string>> run_in_processes(std::size_t count,
                                                  const std::function<Result<std::string>(std::size_t)>& task,
                                                  const std::function<void(std::size_t)>& done) {
    const std::size_t processes_max = std::max(1U, std::thread::hardware_concurrency());
    std::vector<std::string> results(count);
    std::vector<Running> running;
    std::size_t next = 0;
    std::size_t finished = 0;
    Result<void> failed;
    while (next < count || !running.empty()) {
        while (failed && next < count && running.size() < processes_max) {
            auto started = start(next++, task);
            if (!started) {
                failed = std::unexpected(started.error());
                break;
            }
            running.push_back(std::move(*started));
        }
        if (running.empty()) break;
        std::vector<pollfd> polled;
        polled.reserve(running.size());
        for (const Running& child : running)
            polled.push_back({.fd = child.output.get(), .events = POLLIN, .revents = 0});
        if (::poll(polled.data(), polled.size(), -1) < 0) continue;
        for (std::size_t i = running.size(); i-- > 0;) {
            if (polled[i].revents == 0 || !drain(running[i])) continue;
            auto result = wait_for_result(running[i]);
            if (result) {
                results[running[i].task] = std::move(*result);
                done(++finished);
            } else if (failed) {
                failed = std::unexpected(result.error());
                for (const Running& other : running) ::kill(other.pid, SIGTERM);
            }
            running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
        }
        if (!failed) next = count;
    }
    if (!failed) return std::unexpected(failed.error());
    return results;
}

}  // namespace larder::cli
