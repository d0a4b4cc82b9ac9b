// The routes of the API for operators and viewers.

#include <boost/json.hpp>
#include <unistd.h>

#include <utility>

#include "allocator/protocol/codec.h"
#include "allocator/service/allocator_api.h"
#include "allocator/service/json_lists.h"
#include "allocator/service/plan_json.h"
#include "allocator/service/whatif.h"
#include "base/server/json_http.h"
#include "base/server/json_reader.h"
#include "base/server/json_text.h"
#include "base/units.h"

namespace larder::allocator {
namespace json = boost::json;

std::optional<HttpResponse> AllocatorApi::get_health(const Asked&) {
    return HttpResponse{.content_type = "text/plain", .body = "ok\n"};
}

std::optional<HttpResponse> AllocatorApi::get_status(const Asked&) {
    std::size_t alive = 0;
    for (const NodeView& node : view().nodes) alive += node.alive ? 1 : 0;
    json::object status{{"pid", ::getpid()},
                        {"started_unix_ms", started_unix_ms_},
                        {"uptime_s", static_cast<double>(clock_.now_ns() - started_ns_) / 1e9},
                        {"plan", cluster_.plan_number()},
                        {"nodes", alive},
                        {"remote_bytes_per_second", cluster_.options().remote_bytes_per_second}};
    if (extension_ != nullptr) extension_->put_status(status);
    return json_response(status);
}

std::optional<HttpResponse> AllocatorApi::get_metrics(const Asked&) {
    const std::int64_t now_ns = clock_.now_ns();
    std::string text = metrics_text(view(), cluster_, events_, counts_, now_ns, now_ns - started_ns_);
    if (extension_ != nullptr) text += extension_->metrics_text();
    return HttpResponse{.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = std::move(text)};
}

// --- reads

ClusterView AllocatorApi::view() {
    // If no plan can be made, the view shows the last one, which stays in force.
    static_cast<void>(replan(false));
    return view_of(cluster_, observed_, clock_.now_ns());
}

std::optional<HttpResponse> AllocatorApi::get_plan(const Asked&) {
    if (auto made = replan(false); !made) return http_error(made.error());
    return json_response(plan_json(cluster_, cluster_.plan_number()));
}

std::optional<HttpResponse> AllocatorApi::get_nodes(const Asked&) {
    return json_response(nodes_json(view()));
}

std::optional<HttpResponse> AllocatorApi::get_datasets(const Asked&) {
    return json_response(datasets_json(view()));
}

std::optional<HttpResponse> AllocatorApi::get_jobs(const Asked&) {
    return json_response(jobs_json(view()));
}

std::optional<HttpResponse> AllocatorApi::get_events(const Asked& asked) {
    const auto events = events_.after(asked.after.value_or(0));
    if (asked.may_wait && events.empty()) return std::nullopt;
    json::array array;
    for (const Event& event : events) array.push_back(to_json(event));
    return json_response({{"first", events_.first()}, {"last", events_.last()}, {"events", std::move(array)}});
}

std::optional<HttpResponse> AllocatorApi::get_event_stream(const Asked& asked) {
    HttpResponse response;
    response.content_type = "text/event-stream";
    response.stream =
        streams_.open(asked.after.value_or(0), static_cast<std::int64_t>(asked.status_ms) * 1'000'000, clock_.now_ns());
    return response;
}

void AllocatorApi::push_to_streams() {
    const auto status = [this] { return json_text(status_json(view())); };
    streams_.push(events_, status, clock_.now_ns());
}

std::optional<HttpResponse> AllocatorApi::post_whatif(const Asked& asked) {
    const auto object = request_object(asked.http);
    if (!object) return http_error(object.error());
    const auto change = read_change(*object, "");
    if (!change) return http_error(change.error());
    const auto comparison = what_if(cluster_.state(clock_.now_ns()), cluster_.options().objective, *change);
    if (!comparison) return http_error(comparison.error());
    return json_response(to_json(*comparison));
}

// --- changes

HttpResponse AllocatorApi::answer_change(const Result<void>& result, EventKind kind, const std::string& subject,
                                         const std::string& message, bool at_once) {
    if (!result) return http_error(result.error());
    events_.add(kind, subject, message);
    watch_.add_reason(message);
    // A planning error is reported to clients that ask for the plan.
    plan_is_due_ = true;
    if (!cluster_.nodes().empty()) static_cast<void>(replan(at_once));
    return done_response({});
}

std::optional<HttpResponse> AllocatorApi::post_job(const Asked& asked) {
    const auto object = request_object(asked.http);
    if (!object) return http_error(object.error());
    const auto spec = read_job_registration(*object, "");
    if (!spec) return http_error(spec.error());
    undo_ = [this, name = spec->name] { static_cast<void>(cluster_.remove_job(name)); };
    // Not planned at once, because a thousand jobs may be registered in a second.
    return answer_change(cluster_.register_job(*spec), EventKind::job_registered, spec->name,
                         "job " + spec->name + " is registered", false);
}

std::optional<HttpResponse> AllocatorApi::delete_node(const Asked& asked) {
    return answer_change(cluster_.remove_node(asked.name, clock_.now_ns()), EventKind::node_gone, asked.name,
                         "node \"" + asked.name + "\" is removed, and the bandwidth kept for it is released");
}

std::optional<HttpResponse> AllocatorApi::delete_job(const Asked& asked) {
    if (const JobRegistration* const before = cluster_.registered(asked.name)) {
        undo_ = [this, spec = *before] { static_cast<void>(cluster_.register_job(spec)); };
    }
    return answer_change(cluster_.remove_job(asked.name), EventKind::job_removed, asked.name,
                         "job " + asked.name + " is no longer registered", false);
}

std::function<void()> AllocatorApi::undo_pin(const std::string& dataset) {
    std::optional<std::uint64_t> before;
    if (const auto pin = cluster_.pins().find(dataset); pin != cluster_.pins().end()) before = pin->second;
    return [this, dataset, before] { static_cast<void>(cluster_.pin_quota(dataset, before, clock_.now_ns())); };
}

std::optional<HttpResponse> AllocatorApi::put_pin(const Asked& asked) {
    const auto object = request_object(asked.http);
    if (!object) return http_error(object.error());
    JsonReader reader(*object, "");
    const std::uint64_t bytes = reader.unsigned_integer("bytes");
    if (auto finished = reader.finish(); !finished) return http_error(finished.error());
    undo_ = undo_pin(asked.name);
    return answer_change(cluster_.pin_quota(asked.name, bytes, clock_.now_ns()), EventKind::pin_set, asked.name,
                         "quota of " + asked.name + " is pinned to " + format_bytes(bytes));
}

std::optional<HttpResponse> AllocatorApi::delete_pin(const Asked& asked) {
    undo_ = undo_pin(asked.name);
    return answer_change(cluster_.pin_quota(asked.name, std::nullopt, clock_.now_ns()), EventKind::pin_released,
                         asked.name, "quota of " + asked.name + " is planned again");
}

std::optional<HttpResponse> AllocatorApi::put_remote(const Asked& asked) {
    const auto object = request_object(asked.http);
    if (!object) return http_error(object.error());
    JsonReader reader(*object, "");
    const double rate = reader.number("bytes_per_second");
    if (auto finished = reader.finish(); !finished) return http_error(finished.error());
    const double before = cluster_.options().remote_bytes_per_second;
    return answer_remote(before, cluster_.set_remote(rate));
}

std::optional<HttpResponse> AllocatorApi::delete_remote(const Asked&) {
    const double before = cluster_.options().remote_bytes_per_second;
    return answer_remote(before, cluster_.reset_remote());
}

HttpResponse AllocatorApi::answer_remote(double before, const Result<void>& changed) {
    undo_ = [this, before] { static_cast<void>(cluster_.set_remote(before)); };
    return answer_change(
        changed, EventKind::remote_set, "",
        "the remote bandwidth is now " + format_bytes_per_second(cluster_.options().remote_bytes_per_second));
}

}  // namespace larder::allocator
