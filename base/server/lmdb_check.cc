#include "base/server/lmdb_check.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/server/logging.h"

namespace larder {
namespace {

constexpr std::size_t kReasonBytesMax = 4096;
// The exit code of the dynamic loader if a library is missing.
constexpr int kNotLoaded = 127;

struct Outcome {
    int status = 0;
    bool stalled = false;
    std::string reason;
};

std::string checker_beside_this_program() {
    std::error_code error;
    return std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "larder-check-lmdb";
}

// Starts the program with its output in `output`, and no other descriptor of this process.
Result<pid_t> spawn(const std::vector<std::string>& command, const FileDescriptor& output) {
    std::vector<char*> arguments;
    arguments.reserve(command.size() + 1);
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    sigset_t none;
    sigset_t all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t actions;
    ::posix_spawnattr_init(&attributes);
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setsigdefault(&attributes, &all);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    ::posix_spawn_file_actions_adddup2(&actions, output.get(), STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    pid_t child = -1;
    const int error = ::posix_spawn(&child, arguments[0], &actions, &attributes, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
    if (error != 0) return fail_errno(error, "run " + command[0]);
    return child;
}

// Reads the program's output until it ends. Each line is a sign of progress; lines with text say what is wrong.
Outcome wait_for(pid_t child, const FileDescriptor& output, std::int64_t stalled_ms_max) {
    const SteadyClock clock;
    Outcome outcome;
    std::array<char, 512> read_bytes{};
    std::int64_t last_progress_ns = clock.now_ns();
    for (;;) {
        const std::int64_t left_ms = stalled_ms_max - (clock.now_ns() - last_progress_ns) / 1'000'000;
        pollfd poll_entry{.fd = output.get(), .events = POLLIN, .revents = 0};
        const int ready = left_ms <= 0 ? 0 : ::poll(&poll_entry, 1, static_cast<int>(left_ms));
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) {
            outcome.stalled = true;
            ::kill(child, SIGKILL);
            break;
        }
        const ssize_t got = ::read(output.get(), read_bytes.data(), read_bytes.size());
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        last_progress_ns = clock.now_ns();
        const std::string_view text(read_bytes.data(), static_cast<std::size_t>(got));
        for (const char character : text) {
            const bool is_leading_blank = outcome.reason.empty() && (character == '\n' || character == ' ');
            if (!is_leading_blank && outcome.reason.size() < kReasonBytesMax) outcome.reason.push_back(character);
        }
    }
    while (::waitpid(child, &outcome.status, 0) < 0 && errno == EINTR) {
    }
    outcome.reason.resize(std::min(outcome.reason.size(), outcome.reason.find('\n')));
    return outcome;
}

// True if the signal is one that a crash raises, as opposed to one that somebody sent.
bool is_crash(int signal) {
    switch (signal) {
        case SIGABRT:
        case SIGBUS:
        case SIGFPE:
        case SIGILL:
        case SIGSEGV:
        case SIGSYS:
        case SIGTRAP: return true;
        default: return false;
    }
}

}  // namespace

namespace {

Result<std::optional<std::string>> check_once(const std::string& directory, std::span<const std::string_view> databases,
                                              const LmdbCheckOptions& options) {
    const std::string what = "check the LMDB environment in " + directory;
    std::vector<std::string> command{options.program.empty() ? checker_beside_this_program() : options.program};
    if (options.renew) command.emplace_back("--renew");
    command.push_back(directory);
    command.insert(command.end(), databases.begin(), databases.end());
    if (::access(command[0].c_str(), X_OK) != 0) {
        return fail_errno(errno, what + ": the program " + command[0] + ", which is installed with this one");
    }
    // LMDB will meet a failure other than a missing file, too, and report it.
    if (::access((directory + "/data.mdb").c_str(), F_OK) != 0) return std::nullopt;

    std::array<int, 2> pipe{};
    if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return fail_errno(errno, what + ": make a pipe");
    const FileDescriptor output(pipe[0]);
    FileDescriptor input(pipe[1]);
    const auto child = spawn(command, input);
    if (!child) return std::unexpected(child.error().within(what));
    input.reset();
    const Outcome outcome = wait_for(*child, output, options.stalled_ms_max);
    if (outcome.stalled) {
        return "its check made no progress for " + std::to_string(options.stalled_ms_max / 1000) + " s";
    }
    const std::string reason = outcome.reason.empty() ? "" : ": " + outcome.reason;
    if (WIFSIGNALED(outcome.status)) {
        const int signal = WTERMSIG(outcome.status);
        const std::string name = ::sigabbrev_np(signal) != nullptr ? ::sigabbrev_np(signal) : std::to_string(signal);
        if (is_crash(signal)) return "LMDB crashes on it (SIG" + name + ")" + reason;
        return fail(ErrorCode::cancelled, what + ": " + command[0] + " was killed by SIG" + name + reason);
    }
    const int code = WEXITSTATUS(outcome.status);
    if (code == static_cast<int>(LmdbCheckExit::sound)) return std::nullopt;
    if (code == static_cast<int>(LmdbCheckExit::not_renewed)) {
        log_warn("an LMDB environment could not be written anew, and is used as it is",
                 {{"directory", directory}, {"error", outcome.reason}});
        return std::nullopt;
    }
    if (code == static_cast<int>(LmdbCheckExit::cannot_read)) return fail_errno(EIO, what + reason);
    if (code == static_cast<int>(LmdbCheckExit::cannot_check) || code == kNotLoaded) {
        return fail(ErrorCode::internal, what + reason);
    }
    return outcome.reason.empty() ? "its check ended with exit code " + std::to_string(code) : outcome.reason;
}

}  // namespace

// Damage is still there when one looks again. A shortage of memory or a read that failed once may not be.
Result<std::optional<std::string>> find_lmdb_damage(const std::string& directory,
                                                    std::span<const std::string_view> databases,
                                                    const LmdbCheckOptions& options) {
    auto found = check_once(directory, databases, options);
    if (found && !*found) return found;
    if (!found && found.error().code != ErrorCode::internal && found.error().code != ErrorCode::io) return found;
    const bool was_damage = found.has_value();
    found = check_once(directory, databases, options);
    // Damage that only the second check saw must be seen by a third.
    return found && *found && !was_damage ? check_once(directory, databases, options) : found;
}

bool grow_file_over_lmdb_pages(MDB_env* environment, std::uint64_t slack_bytes) {
    MDB_envinfo info;
    MDB_stat stat;
    mdb_filehandle_t fd = -1;
    struct stat file{};
    if (mdb_env_info(environment, &info) != 0 || mdb_env_stat(environment, &stat) != 0) return true;
    if (mdb_env_get_fd(environment, &fd) != 0 || ::fstat(fd, &file) != 0) return true;
    const auto needed = static_cast<std::uint64_t>(info.me_last_pgno + 1) * stat.ms_psize + slack_bytes / 2;
    if (static_cast<std::uint64_t>(file.st_size) >= needed) return true;
    return ::ftruncate(fd, static_cast<off_t>(needed + slack_bytes / 2)) == 0;
}

}  // namespace larder
