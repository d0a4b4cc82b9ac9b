#include "tests/support/server_program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

namespace larder::test {
namespace {

constexpr auto kStopTimeMax = std::chrono::seconds(120);

void write_all(int fd, const std::string& text) {
    for (std::size_t at = 0; at < text.size();) {
        const ssize_t put = ::write(fd, text.data() + at, text.size() - at);
        if (put < 0 && errno == EINTR) continue;
        ASSERT_GT(put, 0) << "the server no longer reads";
        at += static_cast<std::size_t>(put);
    }
}

}  // namespace

ServerProgram::ServerProgram(const std::vector<std::string>& arguments) {
    start(arguments);
}

ServerProgram::~ServerProgram() {
    stop();
}

void ServerProgram::start(const std::vector<std::string>& arguments) {
    std::vector<std::string> words = arguments;
    words.front() = std::string(LARDER_TEST_SERVERS "/") + words.front();
    words.insert(words.begin(), "/usr/bin/python3");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);

    int in[2];
    int out[2];
    ASSERT_EQ(::pipe2(in, O_CLOEXEC), 0);
    const FileDescriptor in_read(in[0]);
    input_ = FileDescriptor(in[1]);
    ASSERT_EQ(::pipe2(out, O_CLOEXEC), 0);
    output_ = FileDescriptor(out[0]);
    FileDescriptor out_write(out[1]);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, in_read.get(), STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, out_write.get(), STDOUT_FILENO);
    const int error = ::posix_spawn(&process_, argv[0], &actions, nullptr, argv.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ASSERT_EQ(error, 0) << argv[1];
    out_write.reset();

    for (std::string line = read_line(); line != "ready"; line = read_line()) {
        const std::size_t equals = line.find('=');
        ASSERT_NE(equals, std::string::npos) << arguments.front() << " is not ready: \"" << line << '"';
        values_[line.substr(0, equals)] = line.substr(equals + 1);
    }
}

std::string ServerProgram::operator[](const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? std::string() : found->second;
}

std::string ServerProgram::ask(const std::string& line) {
    write_all(input_.get(), line + "\n");
    return read_line();
}

int ServerProgram::stop() {
    if (process_ < 0) return -1;
    input_.reset();
    int status = 0;
    const auto deadline = std::chrono::steady_clock::now() + kStopTimeMax;
    pid_t ended = 0;
    while ((ended = ::waitpid(process_, &status, WNOHANG)) == 0 && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (ended == 0) {
        ::kill(process_, SIGTERM);
        while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
        }
    }
    process_ = -1;
    output_.reset();  // not earlier: the program may print a last line
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Returns the next line, or an empty text at the end of output.
std::string ServerProgram::read_line() {
    while (true) {
        const std::size_t end = unreturned_.find('\n');
        if (end != std::string::npos) {
            std::string line = unreturned_.substr(0, end);
            unreturned_.erase(0, end + 1);
            return line;
        }
        char buffer[4096];
        const ssize_t got = ::read(output_.get(), buffer, sizeof buffer);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return {};
        unreturned_.append(buffer, static_cast<std::size_t>(got));
    }
}

}  // namespace larder::test
