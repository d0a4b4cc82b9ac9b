#include "bench/daemon_process.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "base/server/http.h"

extern char** environ;

namespace larder::bench {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(5);
constexpr int kStartPolls = 6000;

// larderd lies beside the program that runs.
std::string larderd_path() {
    return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "larderd").string();
}

}  // namespace

Result<DaemonProcess> DaemonProcess::start(const DaemonOptions& options) {
    std::error_code error;
    std::filesystem::create_directories(options.state_directory, error);
    if (error) return fail_errno(error.value(), "make directory " + options.state_directory);
    const std::string program = larderd_path();
    const std::vector<std::string> arguments = {program,
                                                "--state-directory",
                                                options.state_directory,
                                                "--memory",
                                                std::to_string(options.memory_bytes) + " B",
                                                "--disk",
                                                std::to_string(options.disk_bytes) + " B",
                                                "--disk-reads-max",
                                                std::to_string(options.disk_reads_max),
                                                "--log.level",
                                                "warn"};
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);

    DaemonProcess daemon;
    daemon.socket_ = options.state_directory + "/larderd.sock";
    daemon.admin_ = options.state_directory + "/admin.sock";
    const int failed = ::posix_spawn(&daemon.pid_, program.c_str(), nullptr, nullptr, argv.data(), environ);
    if (failed != 0) {
        daemon.pid_ = -1;
        return fail_errno(failed, "start " + program);
    }
    for (int i = 0; i < kStartPolls; ++i) {
        if (http_request(daemon.admin_, "GET", "/healthz")) return daemon;
        int status = 0;
        if (::waitpid(daemon.pid_, &status, WNOHANG) == daemon.pid_) {
            daemon.pid_ = -1;
            return fail(ErrorCode::unavailable, program + " ended at its start; its log above says why");
        }
        std::this_thread::sleep_for(kPoll);
    }
    return fail(ErrorCode::timeout, program + " does not answer");
}

DaemonProcess::DaemonProcess(DaemonProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), socket_(std::move(other.socket_)), admin_(std::move(other.admin_)) {}

DaemonProcess::~DaemonProcess() {
    stop();
}

void DaemonProcess::stop() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGTERM);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
}

Result<boost::json::object> DaemonProcess::call(const std::string& method, const std::string& target,
                                                const boost::json::object& body) const {
    auto answer = http_request(admin_, method, target, body.empty() ? "" : boost::json::serialize(body));
    if (!answer) return std::unexpected(answer.error());
    if (answer->status >= 300) return std::unexpected(error_of_response(*answer));
    boost::system::error_code error;
    const boost::json::value value = boost::json::parse(answer->body, error);
    if (error || !value.is_object()) return fail(ErrorCode::protocol, method + " " + target + ": no JSON object");
    return value.as_object();
}

Result<void> DaemonProcess::add_dataset(const DatasetOptions& options) {
    return follow(
        call("POST", "/v1/datasets",
             {{"name", options.name},
              {"url", "file://" + options.directory},
              {"format", options.format},
              {"block", options.block},
              {"quota", {{"memory_bytes", options.quota_memory_bytes}, {"disk_bytes", options.quota_disk_bytes}}}}));
}

Result<void> DaemonProcess::warm(const std::string& dataset) {
    return follow(call("POST", "/v1/datasets/" + dataset + "/warm"));
}

Result<void> DaemonProcess::follow(const Result<boost::json::object>& accepted) const {
    if (!accepted) return std::unexpected(accepted.error());
    const boost::json::value& task = accepted->at("task");
    const std::string id = task.is_string() ? std::string(task.as_string()) : boost::json::serialize(task);
    for (;;) {
        const auto state = call("GET", "/v1/tasks/" + id);
        if (!state) return std::unexpected(state.error());
        if (state->at("state").as_string() == "done") return {};
        if (state->at("state").as_string() != "running") {
            return fail(ErrorCode::internal, "task " + id + ": " + boost::json::serialize(*state));
        }
        std::this_thread::sleep_for(kPoll);
    }
}

Result<void> DaemonProcess::set_quota(const std::string& dataset, std::uint64_t memory_bytes,
                                      std::uint64_t disk_bytes) {
    const auto set =
        call("PUT", "/v1/datasets/" + dataset + "/quota", {{"memory_bytes", memory_bytes}, {"disk_bytes", disk_bytes}});
    if (!set) return std::unexpected(set.error());
    return {};
}

Result<void> DaemonProcess::limit_job(const std::string& job, double bytes_per_second, std::uint64_t burst_bytes) {
    const auto set = call("PUT", "/v1/jobs/" + job + "/limit",
                          {{"rate_bytes_per_s", bytes_per_second}, {"burst_bytes", burst_bytes}});
    if (!set) return std::unexpected(set.error());
    return {};
}

Result<boost::json::object> DaemonProcess::dataset(const std::string& name) const {
    return call("GET", "/v1/datasets/" + name);
}

Result<boost::json::object> DaemonProcess::job(const std::string& name) const {
    const auto jobs = call("GET", "/v1/jobs");
    if (!jobs) return std::unexpected(jobs.error());
    for (const boost::json::value& job : jobs->at("jobs").as_array()) {
        if (job.at("job").as_string() == std::string_view(name)) return job.as_object();
    }
    return fail(ErrorCode::not_found, "the daemon knows no job " + name);
}

}  // namespace larder::bench
