#pragma once

// The daemon's HTTP/JSON API: /v1/... for the `larder` command and other programs, /metrics for Prometheus, /healthz.
// Runs on the control thread and never blocks it: an answer that needs the data plane is sent once the data plane has
// answered.
//
//   GET    /v1/status
//   GET    /v1/datasets                     POST   /v1/datasets                 (starts a task)
//   GET    /v1/datasets/NAME                DELETE /v1/datasets/NAME
//   POST   /v1/datasets/NAME/index          POST   /v1/datasets/NAME/verify, /warm   (start tasks)
//   GET    /v1/datasets/NAME/quota          PUT    /v1/datasets/NAME/quota
//   GET    /v1/tasks/ID                     DELETE /v1/tasks/ID                 (cancels)
//   GET    /v1/jobs                         PUT    /v1/jobs/NAME/limit
//   GET    /healthz                         GET    /metrics
//
// Bodies are read strictly: an unknown key or a wrong type is a 400 that names it. Over TCP, where the caller is
// unknown, only /healthz and /metrics are answered.

#include <boost/json/value.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/server/http.h"
#include "cache/control/agent.h"
#include "cache/control/metrics.h"
#include "cache/control/node.h"

namespace larder::cache {

class Api {
public:
    // The arguments must outlive the Api and its answers. `agent` is null without an allocator.
    Api(Node& node, const HandshakeServer& handshakes, const AllocatorAgent* agent);

    void handle(const HttpRequest& request, HttpRespond respond);

private:
    using Path = std::vector<std::string>;

    void route(const HttpRequest& request, HttpRespond respond);
    void datasets(const HttpRequest& request, HttpRespond respond);
    void dataset(const std::string& name, const HttpRequest& request, HttpRespond respond);
    void jobs(const HttpRequest& request, HttpRespond respond);
    void tasks(const HttpRequest& request, const HttpRespond& respond);

    std::optional<AllocatorMetrics> allocator_metrics() const;
    boost::json::value allocator_json() const;
    boost::json::value peers_json() const;
    void get_status(const HttpRespond& respond);
    void get_datasets(HttpRespond respond);
    void get_dataset(const std::string& name, HttpRespond respond);
    void add_dataset(const HttpRequest& request, const HttpRespond& respond);
    void scan_dataset(const std::string& name, const HttpRequest& request, const HttpRespond& respond);
    void get_quota(const std::string& name, const HttpRespond& respond);
    void put_quota(const std::string& name, const HttpRequest& request, HttpRespond respond);
    void get_jobs(HttpRespond respond);
    void put_job_limit(const std::string& job, const HttpRequest& request, HttpRespond respond);
    void delete_job_limit(const std::string& job, HttpRespond respond);
    void get_task(std::uint64_t id, HttpRespond respond);
    void get_metrics(HttpRespond respond);
    boost::json::array outages_json() const;

    Node& node_;
    const HandshakeServer& handshakes_;
    const AllocatorAgent* agent_;
    SteadyClock clock_;
    std::int64_t started_ns_;
};

}  // namespace larder::cache
