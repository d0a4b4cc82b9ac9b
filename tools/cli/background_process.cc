#include "tools/cli/background_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/file_lock.h"
#include "cache/control/daemon_config.h"
#include "tools/cli/context.h"

namespace larder::cli {
namespace {

constexpr std::size_t kTailBytes = 2000;

std::string lock_path(const std::string& state_directory) {
    return state_directory + "/up.lock";
}

Result<FileDescriptor> open_process(pid_t pid) {
    FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!process) return fail_errno(errno, "watch process " + std::to_string(pid));
    return process;
}

bool is_locked(int file) {
    if (::flock(file, LOCK_SH | LOCK_NB) != 0) return true;
    ::flock(file, LOCK_UN);
    return false;
}

// Returns true if the process has the file of a descriptor open, as the holder of its lock has.
bool has_open(pid_t process, int file) {
    struct stat wanted{};
    if (::fstat(file, &wanted) != 0) return false;
    std::error_code error;
    const std::filesystem::path descriptors = "/proc/" + std::to_string(process) + "/fd";
    for (std::filesystem::directory_iterator entry(descriptors, error), end; !error && entry != end;
         entry.increment(error)) {
        struct stat status{};
        if (::stat(entry->path().c_str(), &status) != 0) continue;
        if (status.st_dev == wanted.st_dev && status.st_ino == wanted.st_ino) return true;
    }
    return false;
}

// A datagram socket private to this process and its child. The child reports readiness on it, as services do to
// systemd.
struct Readiness {
    FileDescriptor socket;
    std::string name;  // for $NOTIFY_SOCKET
};

Result<Readiness> listen_for_readiness() {
    Readiness readiness{FileDescriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)), {}};
    if (!readiness.socket) return fail_errno(errno, "make a socket");
    // The address has the family alone, so the kernel picks an abstract name.
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof address.sun_family;
    if (::bind(readiness.socket.get(), generic, length) != 0) return fail_errno(errno, "bind a socket");
    length = sizeof address;
    if (::getsockname(readiness.socket.get(), generic, &length) != 0) return fail_errno(errno, "name a socket");
    readiness.name = "@" + std::string(address.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1);
    return readiness;
}

Result<pid_t> spawn(const BackgroundProcess& background, int log, const std::string& notify) {
    std::vector<std::string> words{"/proc/self/exe"};
    words.insert(words.end(), background.arguments.begin(), background.arguments.end());
    std::vector<std::string> variables;
    for (char** variable = environ; *variable != nullptr; ++variable) {
        if (!std::string_view(*variable).starts_with("NOTIFY_SOCKET=")) variables.emplace_back(*variable);
    }
    variables.push_back("NOTIFY_SOCKET=" + notify);
    const auto pointers = [](std::vector<std::string>& texts) {
        std::vector<char*> list;
        list.reserve(texts.size() + 1);
        for (std::string& text : texts) list.push_back(text.data());
        list.push_back(nullptr);
        return list;
    };
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t actions;
    ::posix_spawnattr_init(&attributes);
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, log, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, log, STDERR_FILENO);
    pid_t child = -1;
    const int error = ::posix_spawn(&child, words.front().c_str(), &actions, &attributes, pointers(words).data(),
                                    pointers(variables).data());
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
    if (error != 0) return fail_errno(error, "run " + background.command + " in the background");
    return child;
}

// Returns an error code for which this process ends with the same exit code as the process that it started.
ErrorCode error_code_of(int wait_status) {
    switch (WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : kFailed) {
        case kUsage: return ErrorCode::invalid_argument;
        case kNotFound: return ErrorCode::not_found;
        case kRefused: return ErrorCode::permission_denied;
        default: return ErrorCode::internal;
    }
}

// Returns true if the process is ready, false if it has ended.
Result<bool> wait_until_ready(int readiness, int process) {
    for (;;) {
        std::array<pollfd, 2> events{pollfd{.fd = readiness, .events = POLLIN, .revents = 0},
                                     pollfd{.fd = process, .events = POLLIN, .revents = 0}};
        if (::poll(events.data(), events.size(), -1) < 0 && errno != EINTR) return fail_errno(errno, "poll");
        if ((events[0].revents & POLLIN) != 0) {
            std::array<char, 256> text{};
            const ssize_t got = ::recv(readiness, text.data(), text.size(), 0);
            if (got > 0 && std::string_view(text.data(), static_cast<std::size_t>(got)) == "READY=1") return true;
        } else if ((events[1].revents & POLLIN) != 0) {
            return false;
        }
    }
}

}  // namespace

Result<FileDescriptor> lock_up(const std::string& state_directory) {
    auto lock = lock_file(lock_path(state_directory), 0600);
    if (lock || lock.error().code != ErrorCode::already_exists) return lock;
    return fail(ErrorCode::already_exists, "larder up is already running on " + state_directory + " (" +
                                               lock.error().message + "): " + down_command(state_directory) +
                                               " stops it");
}

std::string down_command(const std::string& state_directory) {
    return "larder down" +
           (state_directory == cache::default_state_directory() ? std::string() : " --state " + state_directory);
}

Result<pid_t> run_in_background(const BackgroundProcess& background) {
    const auto log = open_file(background.log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (!log) return std::unexpected(log.error());
    const off_t log_bytes_before = ::lseek(log->get(), 0, SEEK_END);
    const auto readiness = listen_for_readiness();
    if (!readiness) return std::unexpected(readiness.error());
    const auto child = spawn(background, log->get(), readiness->name);
    if (!child) return child;
    const auto process = open_process(*child);
    if (!process) return std::unexpected(process.error());
    const auto ready = wait_until_ready(readiness->socket.get(), process->get());
    if (!ready) return std::unexpected(ready.error());
    if (*ready) return *child;
    int status = 0;
    ::waitpid(*child, &status, 0);
    std::string output = read_file(background.log).value_or("");
    output.erase(
        0, std::max(static_cast<std::size_t>(log_bytes_before), output.size() - std::min(output.size(), kTailBytes)));
    while (output.ends_with('\n')) output.pop_back();
    return fail(error_code_of(status),
                background.command + " ended before it was ready; " + background.log + " has:\n" + output);
}

std::vector<std::string> own_arguments() {
    const std::string text = read_file("/proc/self/cmdline").value_or("");
    std::vector<std::string> words;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\0', at), text.size());
        words.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    if (!words.empty()) words.erase(words.begin());
    return words;
}

Result<std::optional<pid_t>> stop_up(const std::string& state_directory, unsigned timeout_s) {
    const auto file = open_file(lock_path(state_directory), O_RDONLY);
    if (!file && file.error().code == ErrorCode::not_found) return std::nullopt;
    if (!file) return std::unexpected(file.error());
    if (!is_locked(file->get())) return std::nullopt;
    pid_t pid = 0;
    const std::string text = read_file(lock_path(state_directory)).value_or("");
    std::from_chars(text.data(), text.data() + text.size(), pid);
    if (pid <= 0) return fail(ErrorCode::changed, "larder up is just starting on " + state_directory + ": try again");
    const auto process = open_process(pid);
    const bool is_holder = process && has_open(pid, file->get());
    if (!is_locked(file->get())) return std::nullopt;
    // In a container or on another machine, the holder of the lock has another number than here.
    if (!is_holder) {
        return fail(ErrorCode::changed,
                    lock_path(state_directory) + " does not belong to process " + std::to_string(pid) +
                        " of this machine, which it names: if larder up is just starting, try again; if it runs in a "
                        "container or on another machine, run larder down there");
    }
    if (::syscall(SYS_pidfd_send_signal, process->get(), SIGTERM, nullptr, 0) != 0 && errno != ESRCH) {
        return fail_errno(errno, "end larder up, process " + std::to_string(pid));
    }
    pollfd ends{.fd = process->get(), .events = POLLIN, .revents = 0};
    const int ended = ::poll(&ends, 1, static_cast<int>(timeout_s) * 1000);
    if (ended < 0) return fail_errno(errno, "wait for process " + std::to_string(pid));
    if (ended == 0) {
        return fail(ErrorCode::timeout, "larder up, process " + std::to_string(pid) + ", did not end within " +
                                            std::to_string(timeout_s) + " s; it may still be ending");
    }
    return pid;
}

}  // namespace larder::cli
