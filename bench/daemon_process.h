#pragma once

// A larderd for a bench: the real program in a child process, on a fresh state directory, ended by its pid.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <cstdint>
#include <string>

#include "base/error.h"
#include "bench/server_process.h"

namespace larder::bench {

struct DaemonOptions {
    std::string state_directory;
    std::uint64_t memory_bytes = std::uint64_t{4} << 30;
    std::uint64_t disk_bytes = std::uint64_t{64} << 30;
    std::uint32_t disk_reads_max = 128;
    // The allocator's endpoint, the node's name there and the node's token; empty: none.
    std::string allocator;
    std::string node;
    std::string token_file;
    // Shares the cache with daemons that have this token, and with `peers_others`; empty: no sharing.
    std::string peers_token_file;
    std::string peers_others;
    std::string peers_listen = "127.0.0.1:0";
    // The network the daemon runs in; null: the bench's own.
    const test::NetworkNamespace* network = nullptr;
};

struct DatasetOptions {
    std::string name;
    std::string directory;
    std::string url;             // instead of the directory
    std::string endpoint;        // for s3://
    std::string format = "raw";  // empty: detected from the files
    std::string block = "sample";
    std::uint32_t tokens_per_sample = 0;  // 0: not set
    std::string compression = "none";
    std::uint64_t quota_memory_bytes = 0;
    std::uint64_t quota_disk_bytes = 0;
};

class DaemonProcess {
public:
    // Starts the daemon and waits until it answers. The state directory may hold an earlier daemon's state.
    static Result<DaemonProcess> start(const DaemonOptions& options);

    // Sends SIGTERM and waits for the end.
    void stop() { server_.stop(); }
    // Sends SIGKILL.
    void kill() { server_.kill(); }

    Result<void> add_dataset(const DatasetOptions& options);
    // Warms the dataset up to its quota.
    Result<void> warm(const std::string& dataset);
    Result<void> set_quota(const std::string& dataset, std::uint64_t memory_bytes, std::uint64_t disk_bytes);
    Result<void> limit_job(const std::string& job, double bytes_per_second, std::uint64_t burst_bytes);
    // Returns GET /v1/status.
    Result<boost::json::object> status() const;
    // Return the datasets of GET /v1/datasets, GET /v1/datasets/NAME, and the job's entry of GET /v1/jobs.
    Result<boost::json::array> datasets() const;
    Result<boost::json::object> dataset(const std::string& name) const;
    Result<boost::json::object> job(const std::string& name) const;

    const std::string& socket() const { return socket_; }
    const std::string& admin_socket() const { return server_.socket(); }
    pid_t pid() const { return server_.pid(); }

private:
    DaemonProcess(ServerProcess server, std::string socket) : server_(std::move(server)), socket_(std::move(socket)) {}
    // Waits until the task that `accepted` names is done.
    Result<void> wait_for_task(const Result<boost::json::object>& accepted) const;
    Result<boost::json::object> call(const std::string& method, const std::string& target,
                                     const boost::json::object& body = {}) const {
        return server_.call(method, target, body);
    }

    ServerProcess server_;
    std::string socket_;
};

}  // namespace larder::bench
