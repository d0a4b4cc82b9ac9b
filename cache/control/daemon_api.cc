#include "cache/control/daemon_api.h"

#include <boost/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/server/http_route.h"
#include "base/server/http_target.h"
#include "base/server/json_reader.h"
#include "base/server/logging.h"
#include "base/server/page.h"
#include "cache/control/api_json.h"

namespace larder::cache {
namespace json = boost::json;

HttpResponse task_response(const Result<std::uint64_t>& task) {
    if (!task) return http_error(task.error());
    return json_response({{"task", *task}}, 202);
}

json::object counters_json(const BlockCounters& counters) {
    return {{"memory_hits", counters.memory_hits},
            {"disk_hits", counters.disk_hits},
            {"misses", counters.misses},
            {"bytes_memory", counters.memory_bytes},
            {"bytes_disk", counters.disk_bytes},
            {"bytes_remote", counters.remote_bytes},
            {"peer_hits", counters.peer_hits},
            {"bytes_peer", counters.peer_bytes},
            {"peer_failures", counters.peer_failures},
            {"offered_blocks", counters.offered_blocks},
            {"lent_blocks", counters.lent_blocks},
            {"bytes_lent", counters.lent_bytes},
            {"bytes_remote_read", counters.remote_read_bytes},
            {"crc_failures", counters.crc_failures},
            {"remote_corrupt", counters.remote_corrupt},
            {"remote_errors", counters.remote_errors}};
}

json::object outage_json(const HttpOutage& outage, std::int64_t now_ns) {
    return {{"endpoint", outage.endpoint},
            {"problem", outage.why.starts_with(": ") ? outage.why.substr(2) : outage.why},
            {"seconds", static_cast<double>(now_ns - outage.began_ns) / 1e9}};
}

json::object quota_json(const Quota& quota) {
    return {{"memory_bytes", quota.memory_bytes}, {"disk_bytes", quota.disk_bytes}};
}

Result<Quota> read_quota(const json::object& object, std::string_view where) {
    JsonReader reader(object, std::string(where));
    const Quota quota{.memory_bytes = reader.unsigned_integer("memory_bytes"),
                      .disk_bytes = reader.unsigned_integer("disk_bytes")};
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    return quota;
}

DaemonApi::DaemonApi(Node& node, const HandshakeServer& handshakes, const AllocatorAgent* agent, PageAccess access)
    : node_(node), handshakes_(handshakes), agent_(agent), access_(access), started_ns_(clock_.now_ns()) {}

void DaemonApi::handle(const HttpRequest& request, const HttpRespond& respond) {
    try {
        find_and_answer(request, respond);
    } catch (const std::exception& error) {
        // Boost.JSON throws when out of memory. The connection then answers 500.
        log_error("a request failed", {{"error", error.what()}});
    }
}

std::span<const DaemonApi::Route> DaemonApi::routes() {
    static constexpr std::array kRoutes{
        Route{"GET", "/healthz", &DaemonApi::get_health, OverTcp::all},
        Route{"GET", "/metrics", &DaemonApi::get_metrics, OverTcp::programs},
        Route{"GET", "/", &DaemonApi::get_page, OverTcp::all},
        Route{"GET", "/page.js", &DaemonApi::get_page, OverTcp::all},
        Route{"GET", "/page.css", &DaemonApi::get_page, OverTcp::all},
        Route{"GET", "/v1/access", &DaemonApi::get_access, OverTcp::read},
        Route{"GET", "/v1", &DaemonApi::get_index, OverTcp::read},
        Route{"GET", "/v1/status", &DaemonApi::get_status, OverTcp::read},
        Route{"GET", "/v1/datasets", &DaemonApi::get_datasets, OverTcp::read},
        Route{"POST", "/v1/datasets", &DaemonApi::post_dataset},
        Route{"GET", "/v1/datasets/{name}", &DaemonApi::get_dataset, OverTcp::read},
        Route{"DELETE", "/v1/datasets/{name}", &DaemonApi::delete_dataset},
        Route{"POST", "/v1/datasets/{name}/index", &DaemonApi::post_index},
        Route{"POST", "/v1/datasets/{name}/verify", &DaemonApi::post_verify},
        Route{"POST", "/v1/datasets/{name}/warm", &DaemonApi::post_warm, OverTcp::token},
        Route{"GET", "/v1/datasets/{name}/quota", &DaemonApi::get_quota, OverTcp::read},
        Route{"PUT", "/v1/datasets/{name}/quota", &DaemonApi::put_quota, OverTcp::token},
        Route{"GET", "/v1/jobs", &DaemonApi::get_jobs, OverTcp::read},
        Route{"PUT", "/v1/jobs/{name}/limit", &DaemonApi::put_job_limit, OverTcp::token},
        Route{"DELETE", "/v1/jobs/{name}/limit", &DaemonApi::delete_job_limit, OverTcp::token},
        Route{"POST", "/v1/jobs/{name}/trace", &DaemonApi::post_trace, OverTcp::token},
        Route{"GET", "/v1/tasks/{id}", &DaemonApi::get_task, OverTcp::read},
        Route{"DELETE", "/v1/tasks/{id}", &DaemonApi::delete_task, OverTcp::token},
    };
    return kRoutes;
}

void DaemonApi::find_and_answer(const HttpRequest& request, const HttpRespond& respond) {
    std::string allowed;
    for (const Route& route : routes()) {
        Asked asked{.http = request};
        if (!match_route(route.path, request.path, asked.name)) continue;
        if (route.method != request.method) {
            allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
            continue;
        }
        if (!request.peer) {
            if (auto refusal = refuse_over_tcp(request, route.over_tcp)) return respond(std::move(*refusal));
        }
        if (auto known = check_query_keys("", request); !known) return respond(http_error(known.error()));
        return (this->*route.answer)(asked, respond);
    }
    if (!request.peer) {
        if (auto refusal = refuse_over_tcp(request, OverTcp::no)) return respond(std::move(*refusal));
    }
    if (!allowed.empty()) return respond(method_not_allowed(allowed));
    respond(no_such_path());
}

bool DaemonApi::has_token(const HttpRequest& request) const {
    return access_.token && !request.bearer_token.empty() &&
           is_same(*access_.token, token_digest(request.bearer_token));
}

HttpResponse DaemonApi::other_host() const {
    const std::string why = "without a token, ask " + own_host_text();
    return access_.token ? http_error(401, "unauthenticated", why) : http_error(403, "permission_denied", why);
}

std::optional<HttpResponse> DaemonApi::refuse_over_tcp(const HttpRequest& request, OverTcp allowed) const {
    if (allowed == OverTcp::all) return std::nullopt;
    if (allowed == OverTcp::programs) {
        const bool is_own = !request.is_from_browser || has_token(request) || is_own_host(request.host);
        return is_own ? std::nullopt : std::optional(other_host());
    }
    if (allowed != OverTcp::no && has_token(request)) return std::nullopt;
    // Pages of a foreign host whose name leads here could read in the browsers of their visitors.
    const bool may_read = access_.anyone_reads && request.bearer_token.empty() && is_own_host(request.host);
    if (allowed == OverTcp::read && may_read) return std::nullopt;
    const bool names_other_host = access_.anyone_reads && request.bearer_token.empty() && !may_read;
    if (names_other_host) return other_host();
    if (access_.token && !may_read && !has_token(request)) {
        return http_error(401, "unauthenticated",
                          request.bearer_token.empty() ? "the request needs the page's token" : "the token is unknown");
    }
    return http_error(403, "permission_denied",
                      may_read || has_token(request)
                          ? "this request is served on the admin socket, or with the page's token"
                          : "only /metrics and /healthz are served over TCP, and the page's files: set "
                            "page.anyone_reads or page.token_file in the config");
}

void DaemonApi::get_page(const Asked& asked, const HttpRespond& respond) {
    respond(page_response(asked.http));
}

void DaemonApi::get_access(const Asked& asked, const HttpRespond& respond) {
    const bool is_anyone = !asked.http.peer && !has_token(asked.http);
    respond(json_response({{"name", is_anyone         ? "anyone"
                                    : asked.http.peer ? "admin socket"
                                                      : "page"},
                           {"role", is_anyone ? "viewer" : "operator"}}));
}

void DaemonApi::get_health(const Asked&, const HttpRespond& respond) {
    respond({.content_type = "text/plain", .body = "ok\n"});
}

void DaemonApi::get_index(const Asked&, const HttpRespond& respond) {
    json::array list;
    for (const Route& route : routes()) list.push_back(json::object{{"method", route.method}, {"path", route.path}});
    respond(json_response({{"routes", std::move(list)}}));
}

std::optional<AllocatorMetrics> DaemonApi::allocator_metrics() const {
    if (agent_ == nullptr) return std::nullopt;
    const AgentStatus& status = agent_->status();
    const double left_s = static_cast<double>(status.lease_expires_ns - clock_.now_ns() - slept_ns()) / 1e9;
    return AllocatorMetrics{.connected = status.connected,
                            .plan = status.plan,
                            .lease_left_seconds = std::max(0.0, left_s),
                            .reports = status.reports,
                            .failures = status.failures};
}

json::value DaemonApi::allocator_json() const {
    const auto known = allocator_metrics();
    if (!known) return nullptr;
    return json::object{{"endpoint", node_.config().allocator.endpoint},
                        {"node", node_.config().allocator.node},
                        {"connected", known->connected},
                        {"problem", agent_->status().problem},
                        {"plan", known->plan},
                        {"lease_left_s", known->lease_left_seconds},
                        {"reports", known->reports},
                        {"failures", known->failures}};
}

json::value DaemonApi::peers_json() const {
    if (node_.peers() == nullptr) return nullptr;
    json::array others;
    for (const PeerStatus& peer : node_.peers()->status()) {
        others.push_back(json::object{{"node", peer.node},
                                      {"endpoint", peer.endpoint},
                                      {"answers", peer.answers},
                                      {"problem", peer.problem},
                                      {"held_blocks", peer.held_blocks},
                                      {"room_bytes", peer.room_bytes}});
    }
    return json::object{{"endpoint", node_.peers()->endpoint()}, {"others", std::move(others)}};
}

json::array DaemonApi::outages_json() const {
    json::array outages;
    for (const HttpOutage& outage : node_.outages()) outages.push_back(outage_json(outage, clock_.now_ns()));
    return outages;
}

void DaemonApi::get_status(const Asked&, const HttpRespond& respond) {
    const IndexStatus index = node_.index_status();
    json::array problems;
    for (const std::string& problem : node_.problems()) problems.emplace_back(problem);
    respond(json_response({{"version", LARDER_VERSION},
                           {"pid", ::getpid()},
                           {"uptime_s", static_cast<double>(clock_.now_ns() - started_ns_) / 1e9},
                           {"io", node_.shards().device_kind()},
                           {"io_reason", node_.shards().why_not_ring()},
                           {"data_plane_threads", node_.shards().all().size()},
                           {"memory_bytes", node_.config().memory_bytes},
                           {"disk_bytes", node_.config().disk_bytes},
                           {"datasets", node_.datasets().all().size()},
                           {"sessions", handshakes_.sessions()},
                           {"slot_bytes", handshakes_.slot_bytes()},
                           {"allocator", allocator_json()},
                           {"peers", peers_json()},
                           {"outages", outages_json()},
                           {"problems", std::move(problems)},
                           {"index_problem", index.problem}}));
}

void DaemonApi::get_metrics(const Asked&, const HttpRespond& respond) {
    node_.shards().collect([this, respond](const Result<ShardStatistics>& statistics) {
        if (!statistics) return respond(http_error(statistics.error()));
        const NodeMetrics node{.sessions = handshakes_.sessions(),
                               .slot_bytes = handshakes_.slot_bytes(),
                               .memory_bytes = node_.config().memory_bytes,
                               .disk_bytes = node_.config().disk_bytes,
                               .uptime_seconds = static_cast<double>(clock_.now_ns() - started_ns_) / 1e9,
                               .log_lines_dropped = log_lines_dropped(),
                               .index = node_.index_status(),
                               .allocator = allocator_metrics(),
                               .http = node_.http_statistics()};
        respond({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics_text(node, *statistics)});
    });
}

}  // namespace larder::cache
