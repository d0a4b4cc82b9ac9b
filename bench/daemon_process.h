#pragma once

// A larderd of the bench's own: the real program in a process of its own, on a fresh state directory, ended by its pid.

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
    // The allocator's endpoint, the node's name there and the token it shows; empty: none.
    std::string allocator;
    std::string node;
    std::string token_file;
    // It shares its cache over the loopback with those that have the same token, and with `peers_others`; empty: not.
    std::string peers_token_file;
    std::string peers_others;
    // It runs in; null: in ours.
    const NetworkNamespace* network = nullptr;
};

struct DatasetOptions {
    std::string name;
    std::string directory;
    std::string url;             // instead of the directory
    std::string endpoint;        // of s3://
    std::string format = "raw";  // empty: as its files look
    std::string block = "sample";
    std::uint32_t tokens_per_sample = 0;  // 0: none wished
    std::string compression = "none";
    std::uint64_t quota_memory_bytes = 0;
    std::uint64_t quota_disk_bytes = 0;
};

class DaemonProcess {
public:
    // Starts it and waits until it answers. The state directory may hold what an earlier daemon left.
    static Result<DaemonProcess> start(const DaemonOptions& options);

    // SIGTERM, and waits for its end.
    void stop() { server_.stop(); }
    // SIGKILL.
    void kill() { server_.kill(); }

    Result<void> add_dataset(const DatasetOptions& options);
    // Brings in what the quota allows.
    Result<void> warm(const std::string& dataset);
    Result<void> set_quota(const std::string& dataset, std::uint64_t memory_bytes, std::uint64_t disk_bytes);
    Result<void> limit_job(const std::string& job, double bytes_per_second, std::uint64_t burst_bytes);
    // GET /v1/status.
    Result<boost::json::object> status() const;
    // The datasets of GET /v1/datasets; GET /v1/datasets/NAME; the job's entry of GET /v1/jobs.
    Result<boost::json::array> datasets() const;
    Result<boost::json::object> dataset(const std::string& name) const;
    Result<boost::json::object> job(const std::string& name) const;

    const std::string& socket() const { return socket_; }
    const std::string& admin_socket() const { return server_.socket(); }
    pid_t pid() const { return server_.pid(); }

private:
    DaemonProcess(ServerProcess server, std::string socket) : server_(std::move(server)), socket_(std::move(socket)) {}
    Result<void> follow(const Result<boost::json::object>& accepted) const;
    Result<boost::json::object> call(const std::string& method, const std::string& target,
                                     const boost::json::object& body = {}) const {
        return server_.call(method, target, body);
    }

    ServerProcess server_;
    std::string socket_;
};

}  // namespace larder::bench
