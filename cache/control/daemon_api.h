#pragma once

// The daemon's HTTP/JSON API: /v1/... for the `larder` command and other programs, /metrics for Prometheus, /healthz.
// Runs on the control thread and never blocks it: an answer that needs the data plane is sent once the data plane has
// answered.
//
// DaemonApi::routes() has the routes; docs/openapi/larderd.yaml describes them, and a test compares the two.
//
// Bodies and queries are read strictly: an unknown key or a wrong type is a 400 that names it. Over TCP, where the
// caller is unknown, only /healthz, /metrics and the page's files are answered, unless the config lets everyone look,
// or the caller shows the page's token.

#include <boost/json/value.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/server/http.h"
#include "base/server/token_digest.h"
#include "cache/control/agent.h"
#include "cache/control/daemon_metrics.h"
#include "cache/control/node.h"

namespace larder::cache {

// Says who may do what over TCP.
struct PageAccess {
    bool anyone_reads = false;
    std::optional<TokenDigest> token;  // nullopt: there is none
};

class DaemonApi {
public:
    // The arguments must outlive the DaemonApi and its answers. `agent` is null without an allocator.
    DaemonApi(Node& node, const HandshakeServer& handshakes, const AllocatorAgent* agent, PageAccess access = {});

    // A request, and the name in its path.
    struct Asked {
        const HttpRequest& http;
        std::string name;  // the segment in braces
    };
    // To whom a route is served over TCP: to nobody; to whoever shows the page's token; to whoever may look; to all but
    // browsers that name another host, whose pages could read the answer; to all.
    enum class OverTcp : std::uint8_t { no, token, read, programs, all };
    struct Route {
        std::string_view method;
        std::string_view path;  // "/v1/datasets/{name}/quota"
        void (DaemonApi::*answer)(const Asked& asked, const HttpRespond& respond);
        OverTcp over_tcp = OverTcp::no;
    };
    static std::span<const Route> routes();

    void handle(const HttpRequest& request, const HttpRespond& respond);

private:
    void find_and_answer(const HttpRequest& request, const HttpRespond& respond);
    bool has_token(const HttpRequest& request) const;
    // The refusal of a request without a token that names a host that may be somebody else's.
    HttpResponse other_host() const;
    // Returns the refusal of a request over TCP, if it is refused.
    std::optional<HttpResponse> refuse_over_tcp(const HttpRequest& request, OverTcp allowed) const;

    std::optional<AllocatorMetrics> allocator_metrics() const;
    boost::json::value allocator_json() const;
    boost::json::value peers_json() const;
    void get_health(const Asked& asked, const HttpRespond& respond);
    void get_metrics(const Asked& asked, const HttpRespond& respond);
    void get_page(const Asked& asked, const HttpRespond& respond);
    void get_access(const Asked& asked, const HttpRespond& respond);
    void get_index(const Asked& asked, const HttpRespond& respond);
    void get_status(const Asked& asked, const HttpRespond& respond);
    void get_datasets(const Asked& asked, const HttpRespond& respond);
    void post_dataset(const Asked& asked, const HttpRespond& respond);
    void get_dataset(const Asked& asked, const HttpRespond& respond);
    void delete_dataset(const Asked& asked, const HttpRespond& respond);
    void post_index(const Asked& asked, const HttpRespond& respond);
    void post_verify(const Asked& asked, const HttpRespond& respond);
    void post_warm(const Asked& asked, const HttpRespond& respond);
    void get_quota(const Asked& asked, const HttpRespond& respond);
    void put_quota(const Asked& asked, const HttpRespond& respond);
    void get_jobs(const Asked& asked, const HttpRespond& respond);
    void put_job_limit(const Asked& asked, const HttpRespond& respond);
    void delete_job_limit(const Asked& asked, const HttpRespond& respond);
    void post_trace(const Asked& asked, const HttpRespond& respond);
    void get_task(const Asked& asked, const HttpRespond& respond);
    void delete_task(const Asked& asked, const HttpRespond& respond);

    void respond_with_quota(const std::string& dataset, const HttpRespond& respond);
    void respond_with_task(const Asked& asked, bool cancel, const HttpRespond& respond);
    boost::json::array outages_json() const;
    // Calls `then` once the names of the datasets' users and groups are known, or cannot be had in time.
    void learn_names(const std::function<void()>& then);
    HttpResponse jobs_response(const std::vector<JobStatistics>& running) const;

    Node& node_;
    const HandshakeServer& handshakes_;
    const AllocatorAgent* agent_;
    PageAccess access_;
    SteadyClock clock_;
    std::int64_t started_ns_;
};

}  // namespace larder::cache
