#include "tests/support/program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "base/file.h"

namespace larder::test {
namespace {

// Reads both until both are closed: a program that fills one pipe must not wait for the other.
void drain(int output, int errors, ProgramResult& result) {
    pollfd watched[2] = {{output, POLLIN, 0}, {errors, POLLIN, 0}};
    std::string* into[2] = {&result.output, &result.errors};
    while (watched[0].fd >= 0 || watched[1].fd >= 0) {
        if (::poll(watched, 2, -1) < 0) continue;
        for (int i = 0; i < 2; ++i) {
            if (watched[i].fd < 0 || watched[i].revents == 0) continue;
            char buffer[4096];
            const ssize_t got = ::read(watched[i].fd, buffer, sizeof buffer);
            if (got <= 0) {
                watched[i].fd = -1;
            } else {
                into[i]->append(buffer, static_cast<std::size_t>(got));
            }
        }
    }
}

}  // namespace

ProgramResult run_program(const std::vector<std::string>& arguments,
                          const std::vector<std::pair<std::string, std::string>>& environment) {
    ProgramResult result;
    std::vector<char*> argv;
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    // A child of a threaded process must not allocate, so everything is allocated before the fork.
    std::vector<std::string> variables;
    for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
    for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
    std::vector<char*> envp;
    for (std::string& variable : variables) envp.push_back(variable.data());
    envp.push_back(nullptr);

    int out[2];
    int err[2];
    if (::pipe2(out, O_CLOEXEC) != 0) return result;
    FileDescriptor out_read(out[0]);
    FileDescriptor out_write(out[1]);
    if (::pipe2(err, O_CLOEXEC) != 0) return result;
    FileDescriptor err_read(err[0]);
    FileDescriptor err_write(err[1]);
    const FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const pid_t child = ::fork();
    if (child < 0) return result;
    if (child == 0) {
        ::dup2(nothing.get(), STDIN_FILENO);
        ::dup2(out_write.get(), STDOUT_FILENO);
        ::dup2(err_write.get(), STDERR_FILENO);
        ::execve(argv[0], argv.data(), envp.data());
        ::_exit(127);
    }
    out_write.reset();
    err_write.reset();
    drain(out_read.get(), err_read.get(), result);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
    return result;
}

}  // namespace larder::test
