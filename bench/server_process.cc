#include "bench/server_process.h"

#include <boost/json/parse.hpp>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "base/server/http_client.h"
#include "base/server/json_text.h"

extern char** environ;

namespace larder::bench {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(5);
constexpr int kStartPolls = 6000;

}  // namespace

Result<ServerProcess> ServerProcess::start(const std::string& program, const std::vector<std::string>& arguments,
                                           const std::string& socket, const test::NetworkNamespace* network) {
    const std::string path = (std::filesystem::read_symlink("/proc/self/exe").parent_path() / program).string();
    std::vector<char*> argv{const_cast<char*>(path.c_str())};
    argv.reserve(arguments.size() + 2);
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);

    ServerProcess server(socket);
    int failed = 0;
    {
        std::optional<test::NetworkNamespace::Inside> inside;
        if (network != nullptr) inside.emplace(*network);
        failed = ::posix_spawn(&server.pid_, path.c_str(), nullptr, nullptr, argv.data(), environ);
    }
    if (failed != 0) {
        server.pid_ = -1;
        return fail_errno(failed, "start " + path);
    }
    for (int i = 0; i < kStartPolls; ++i) {
        if (http_request(socket, "GET", "/healthz")) return server;
        int status = 0;
        if (::waitpid(server.pid_, &status, WNOHANG) == server.pid_) {
            server.pid_ = -1;
            return fail(ErrorCode::unavailable, program + " ended at its start; its log above says why");
        }
        std::this_thread::sleep_for(kPoll);
    }
    return fail(ErrorCode::timeout, program + " does not answer");
}

ServerProcess::ServerProcess(ServerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), socket_(std::move(other.socket_)) {}

ServerProcess& ServerProcess::operator=(ServerProcess&& other) noexcept {
    if (this == &other) return *this;
    stop();
    pid_ = std::exchange(other.pid_, -1);
    socket_ = std::move(other.socket_);
    return *this;
}

ServerProcess::~ServerProcess() {
    stop();
}

void ServerProcess::end(int signal) {
    if (pid_ <= 0) return;
    ::kill(pid_, signal);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
}

Result<boost::json::object> ServerProcess::call(const std::string& method, const std::string& target,
                                                const boost::json::object& body) const {
    auto answer = http_request(socket_, method, target, body.empty() ? "" : json_text(body));
    if (!answer) return std::unexpected(answer.error());
    if (answer->status >= 300) return std::unexpected(error_of_response(*answer));
    boost::system::error_code error;
    const boost::json::value value = boost::json::parse(answer->body, error);
    if (error || !value.is_object()) return fail(ErrorCode::protocol, method + " " + target + ": no JSON object");
    return value.as_object();
}

}  // namespace larder::bench
