#include "tools/cli/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <utility>

#include "base/file.h"

namespace larder::cli {
namespace {

// A file in memory: a pipe would wake this process for every few KiB of a large output, and a grandchild could hold it.
Result<FileDescriptor> memory_file(const std::string& content = {}) {
    FileDescriptor file(::memfd_create("larder", MFD_CLOEXEC));
    if (!file) return fail_errno(errno, "create a file in memory");
    for (std::size_t written = 0; written < content.size();) {
        const ssize_t put =
            ::pwrite(file.get(), content.data() + written, content.size() - written, static_cast<off_t>(written));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return fail_errno(errno, "write to a file in memory");
        written += static_cast<std::size_t>(put);
    }
    return file;
}

Result<std::string> content_of(const FileDescriptor& file) {
    // The program has moved the offset, which it shares with this process.
    if (::lseek(file.get(), 0, SEEK_SET) < 0) return fail_errno(errno, "rewind a program's output");
    return read_all(file, "a program's output");
}

// No fork: it would copy the page table of a large process.
Result<pid_t> start(const std::vector<std::string>& arguments, const FileDescriptor& input,
                    const FileDescriptor& output, const FileDescriptor& errors) {
    std::vector<char*> pointers;
    pointers.reserve(arguments.size() + 1);
    for (const std::string& argument : arguments) pointers.push_back(const_cast<char*>(argument.c_str()));
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, input.get(), STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, output.get(), STDOUT_FILENO);
    if (errors) ::posix_spawn_file_actions_adddup2(&actions, errors.get(), STDERR_FILENO);
    pid_t pid = 0;
    const int error = ::posix_spawnp(&pid, arguments.front().c_str(), &actions, nullptr, pointers.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    if (error == ENOENT) return fail(ErrorCode::not_found, arguments.front() + " is not installed");
    if (error != 0) return fail_errno(error, "run " + arguments.front());
    return pid;
}

Result<bool> ends_within(pid_t pid, std::chrono::seconds limit) {
    const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!process) return fail_errno(errno, "watch a program");
    const auto until = std::chrono::steady_clock::now() + limit;
    pollfd ended{.fd = process.get(), .events = POLLIN, .revents = 0};
    while (ended.revents == 0) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
        if (left.count() <= 0) return false;
        ::poll(&ended, 1, static_cast<int>(std::min<std::int64_t>(left.count(), INT_MAX)));
    }
    return true;
}

// Returns the exit status, or 128 plus the signal that ended the program.
Result<int> wait_for(pid_t pid, const std::string& program, std::optional<std::chrono::seconds> limit) {
    const Result<bool> has_ended = limit ? ends_within(pid, *limit) : true;
    if (!has_ended || !*has_ended) ::kill(pid, SIGKILL);
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) return fail_errno(errno, "wait for " + program);
    }
    if (!has_ended) return std::unexpected(has_ended.error());
    if (!*has_ended) {
        return fail(ErrorCode::unavailable,
                    program + " has not ended within " + std::to_string(limit->count()) + " s, and is killed");
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// No `errors`: the program shares this process's stderr.
Result<int> run(const std::vector<std::string>& arguments, const std::string& input, std::string& output,
                std::string* errors, std::optional<std::chrono::seconds> limit) {
    const auto given = memory_file(input);
    if (!given) return std::unexpected(given.error());
    const auto printed = memory_file();
    if (!printed) return std::unexpected(printed.error());
    FileDescriptor complained;
    if (errors != nullptr) {
        auto file = memory_file();
        if (!file) return std::unexpected(file.error());
        complained = std::move(*file);
    }
    const auto pid = start(arguments, *given, *printed, complained);
    if (!pid) return std::unexpected(pid.error());
    const auto status = wait_for(*pid, arguments.front(), limit);
    if (!status) return status;
    auto text = content_of(*printed);
    if (!text) return std::unexpected(text.error());
    output = std::move(*text);
    if (errors == nullptr) return status;
    auto error_text = content_of(complained);
    if (!error_text) return std::unexpected(error_text.error());
    *errors = std::move(*error_text);
    return status;
}

}  // namespace

Result<std::string> run_program(const std::vector<std::string>& arguments, const std::string& input) {
    std::string output;
    const auto status = run(arguments, input, output, nullptr, {});
    if (!status) return std::unexpected(status.error());
    if (*status != 0) {
        return fail(ErrorCode::internal, arguments.front() + " ended with status " + std::to_string(*status));
    }
    return output;
}

Result<ProgramOutput> run_program_for_all(const std::vector<std::string>& arguments, const std::string& input,
                                          std::optional<std::chrono::seconds> limit) {
    ProgramOutput ran;
    const auto status = run(arguments, input, ran.output, &ran.errors, limit);
    if (!status) return std::unexpected(status.error());
    ran.status = *status;
    return ran;
}

}  // namespace larder::cli
