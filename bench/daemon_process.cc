#include "bench/daemon_process.h"

#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/server/json_text.h"

namespace larder::bench {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(5);

}  // namespace

Result<DaemonProcess> DaemonProcess::start(const DaemonOptions& options) {
    std::error_code error;
    std::filesystem::create_directories(options.state_directory, error);
    if (error) return fail_errno(error.value(), "make directory " + options.state_directory);
    std::vector<std::string> arguments = {"--state-directory",
                                          options.state_directory,
                                          "--memory",
                                          std::to_string(options.memory_bytes) + " B",
                                          "--disk",
                                          std::to_string(options.disk_bytes) + " B",
                                          "--disk-reads-max",
                                          std::to_string(options.disk_reads_max),
                                          "--log.level",
                                          "warn"};
    if (!options.allocator.empty()) {
        arguments.insert(arguments.end(),
                         {"--allocator.endpoint", options.allocator, "--allocator.node", options.node});
    }
    if (!options.token_file.empty()) {
        arguments.insert(arguments.end(), {"--allocator.token-file", options.token_file});
    }
    if (!options.peers_token_file.empty()) {
        arguments.insert(arguments.end(), {"--peers.listen", options.peers_listen, "--peers.token-file",
                                           options.peers_token_file, "--peers.witnesses", "0"});
    }
    if (!options.peers_others.empty()) arguments.insert(arguments.end(), {"--peers.others", options.peers_others});
    auto server = ServerProcess::start("larderd", arguments, options.state_directory + "/admin.sock", options.network);
    if (!server) return std::unexpected(server.error());
    return DaemonProcess(std::move(*server), options.state_directory + "/larderd.sock");
}

Result<void> DaemonProcess::add_dataset(const DatasetOptions& options) {
    boost::json::object body{{"name", options.name},
                             {"url", options.url.empty() ? "file://" + options.directory : options.url},
                             {"block", options.block},
                             {"compression", options.compression}};
    if (options.quota_memory_bytes + options.quota_disk_bytes > 0) {
        body["quota"] = {{"memory_bytes", options.quota_memory_bytes}, {"disk_bytes", options.quota_disk_bytes}};
    }
    if (!options.format.empty()) body["format"] = options.format;
    if (!options.endpoint.empty()) body["remote"] = boost::json::object{{"endpoint", options.endpoint}};
    if (options.tokens_per_sample > 0) body["tokens_per_sample"] = options.tokens_per_sample;
    return wait_for_task(call("POST", "/v1/datasets", body));
}

Result<void> DaemonProcess::warm(const std::string& dataset) {
    return wait_for_task(call("POST", "/v1/datasets/" + dataset + "/warm"));
}

Result<void> DaemonProcess::wait_for_task(const Result<boost::json::object>& accepted) const {
    if (!accepted) return std::unexpected(accepted.error());
    const boost::json::value& task = accepted->at("task");
    const std::string id = task.is_string() ? std::string(task.as_string()) : json_text(task);
    for (;;) {
        const auto state = call("GET", "/v1/tasks/" + id);
        if (!state) return std::unexpected(state.error());
        if (state->at("state").as_string() == "done") return {};
        if (state->at("state").as_string() != "running") {
            return fail(ErrorCode::internal, "task " + id + ": " + json_text(*state));
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
                          {{"rate_bytes_per_second", bytes_per_second}, {"burst_bytes", burst_bytes}});
    if (!set) return std::unexpected(set.error());
    return {};
}

Result<boost::json::object> DaemonProcess::status() const {
    return call("GET", "/v1/status");
}

Result<boost::json::array> DaemonProcess::datasets() const {
    const auto datasets = call("GET", "/v1/datasets");
    if (!datasets) return std::unexpected(datasets.error());
    return datasets->at("datasets").as_array();
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
