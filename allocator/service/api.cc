#include "allocator/service/api.h"

#include <boost/json.hpp>

#include <optional>
#include <string>

#include "allocator/service/json.h"
#include "base/server/json_http.h"
#include "base/server/json_reader.h"

namespace larder::allocator {
namespace json = boost::json;

HttpResponse Api::handle(const HttpRequest& request) {
    const auto& path = request.path;
    if (path == std::vector<std::string>{"healthz"}) {
        return request.method == "GET" ? HttpResponse{.content_type = "text/plain", .body = "ok\n"}
                                       : method_not_allowed("GET");
    }
    if (path.size() < 2 || path[0] != "v1") return no_such_path();
    if (path.size() == 2 && path[1] == "reports") {
        return request.method == "POST" ? post_report(request) : method_not_allowed("POST");
    }
    if (path.size() == 2 && path[1] == "plan") return request.method == "GET" ? get_plan() : method_not_allowed("GET");
    if (path.size() == 2 && path[1] == "remote") {
        return request.method == "PUT" ? put_remote(request) : method_not_allowed("PUT");
    }
    if (path[1] == "jobs" && path.size() <= 3) return jobs(request);
    if (path.size() == 4 && path[1] == "datasets" && path[3] == "pin") return pin(request);
    return no_such_path();
}

HttpResponse Api::post_report(const HttpRequest& request) {
    const auto object = request_object(request);
    if (!object) return http_error(object.error());
    const auto report = read_node_report(*object, "");
    if (!report) return http_error(report.error());
    const std::int64_t now_ns = clock_.now_ns();
    if (auto taken = cluster_.report(*report, now_ns); !taken) return http_error(taken.error());
    if (auto planned = cluster_.replan(now_ns); !planned) return http_error(planned.error());
    const auto part = cluster_.plan_for(report->node, now_ns);
    if (!part) return http_error(part.error());
    return json_response(to_json(*part, now_ns));
}

HttpResponse Api::get_plan() {
    const auto number = cluster_.replan(clock_.now_ns());
    if (!number) return http_error(number.error());
    return json_response(plan_json(cluster_, *number));
}

HttpResponse Api::jobs(const HttpRequest& request) {
    if (request.path.size() == 3) {
        if (request.method != "DELETE") return method_not_allowed("DELETE");
        return done_response(cluster_.remove_job(request.path[2]));
    }
    if (request.method != "POST") return method_not_allowed("POST");
    const auto object = request_object(request);
    if (!object) return http_error(object.error());
    const auto spec = read_job_spec(*object, "");
    if (!spec) return http_error(spec.error());
    return done_response(cluster_.register_job(*spec));
}

HttpResponse Api::pin(const HttpRequest& request) {
    const std::string& dataset = request.path[2];
    const std::int64_t now_ns = clock_.now_ns();
    if (request.method == "DELETE") return done_response(cluster_.pin_quota(dataset, std::nullopt, now_ns));
    if (request.method != "PUT") return method_not_allowed("PUT, DELETE");
    const auto object = request_object(request);
    if (!object) return http_error(object.error());
    JsonReader reader(*object, "");
    const std::uint64_t bytes = reader.unsigned_integer("bytes");
    if (auto finished = reader.finish(); !finished) return http_error(finished.error());
    return done_response(cluster_.pin_quota(dataset, bytes, now_ns));
}

HttpResponse Api::put_remote(const HttpRequest& request) {
    const auto object = request_object(request);
    if (!object) return http_error(object.error());
    JsonReader reader(*object, "");
    const double rate = reader.number("bytes_per_second");
    if (auto finished = reader.finish(); !finished) return http_error(finished.error());
    return done_response(cluster_.set_remote(rate));
}

}  // namespace larder::allocator
