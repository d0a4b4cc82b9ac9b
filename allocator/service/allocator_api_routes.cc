// The table of routes, and the search in it.

#include <boost/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "allocator/protocol/codec.h"
#include "allocator/service/allocator_api.h"
#include "base/server/http_route.h"
#include "base/server/json_http.h"

namespace larder::allocator {
namespace json = boost::json;
namespace {

constexpr std::uint64_t kWaitMax_s = 60;
constexpr std::uint64_t kStatusMin_ms = 100;
constexpr std::uint64_t kStatusMax_ms = 3'600'000;

// Reads the query keys that routes accept. All values are whole numbers.
Result<void> read_query(const AllocatorApi::Route& route, const HttpRequest& request, AllocatorApi::Asked& asked) {
    if (auto known = check_query_keys(route.query, request); !known) return known;
    for (const auto& [key, text] : request.query) {
        if (key == kProtocolQuery) {
            const auto version = parse_protocol(text);
            if (!version) return std::unexpected(version.error().within("query: protocol"));
            asked.protocol = *version;
            continue;
        }
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc{} || end != text.data() + text.size()) {
            return fail(ErrorCode::invalid_argument,
                        "query: " + key + " is \"" + text + "\", but must be a whole number");
        }
        if (key == "after") asked.after = value;
        if (key == "wait_s") asked.wait_s = value;
        if (key == "status_ms") {
            if (value < kStatusMin_ms || value > kStatusMax_ms) {
                return fail(ErrorCode::invalid_argument, "query: status_ms must be from " +
                                                             std::to_string(kStatusMin_ms) + " to " +
                                                             std::to_string(kStatusMax_ms));
            }
            asked.status_ms = value;
        }
    }
    if (asked.wait_s > kWaitMax_s) {
        return fail(ErrorCode::invalid_argument, "query: wait_s must be at most " + std::to_string(kWaitMax_s));
    }
    asked.may_wait = asked.wait_s > 0;
    return {};
}

}  // namespace

std::span<const AllocatorApi::Route> AllocatorApi::routes() {
    static constexpr std::array kRoutes{
        Route{"GET", "/healthz", "", &AllocatorApi::get_health},
        Route{"GET", "/metrics", "", &AllocatorApi::get_metrics},
        Route{"GET", "/v1", "", &AllocatorApi::get_index},
        Route{"GET", "/v1/status", "", &AllocatorApi::get_status},
        Route{"POST", "/v1/reports", kProtocolQuery, &AllocatorApi::post_report},
        Route{"GET", "/v1/plan", "", &AllocatorApi::get_plan},
        Route{"GET", "/v1/nodes", "", &AllocatorApi::get_nodes},
        Route{"DELETE", "/v1/nodes/{name}", "", &AllocatorApi::delete_node},
        Route{"GET", "/v1/nodes/{name}/plan", "", &AllocatorApi::get_node_plan},
        Route{"GET", "/v1/datasets", "", &AllocatorApi::get_datasets},
        Route{"PUT", "/v1/datasets/{name}/pin", "", &AllocatorApi::put_pin, true},
        Route{"DELETE", "/v1/datasets/{name}/pin", "", &AllocatorApi::delete_pin, true},
        Route{"GET", "/v1/jobs", "", &AllocatorApi::get_jobs},
        Route{"POST", "/v1/jobs", "", &AllocatorApi::post_job, true},
        Route{"DELETE", "/v1/jobs/{name}", "", &AllocatorApi::delete_job, true},
        Route{"PUT", "/v1/remote", "", &AllocatorApi::put_remote, true},
        Route{"DELETE", "/v1/remote", "", &AllocatorApi::delete_remote, true},
        Route{"POST", "/v1/whatif", "", &AllocatorApi::post_whatif},
        Route{"GET", "/v1/events", "after wait_s", &AllocatorApi::get_events},
        Route{"GET", "/v1/events/stream", "after status_ms", &AllocatorApi::get_event_stream},
    };
    return kRoutes;
}

std::optional<HttpResponse> AllocatorApi::get_index(const Asked&) {
    json::array list;
    const auto add = [&](const auto& route) {
        list.push_back(json::object{{"method", route.method}, {"path", route.path}});
    };
    std::ranges::for_each(routes(), add);
    if (extension_ != nullptr) std::ranges::for_each(extension_->routes(), add);
    return json_response({{"routes", std::move(list)}});
}

void AllocatorApi::handle(const HttpRequest& request, const HttpRespond& respond) {
    find_and_answer(request, respond);
    answer_waiting(false);
    push_to_streams();
}

void AllocatorApi::find_and_answer(const HttpRequest& request, const HttpRespond& respond) {
    std::string allowed;
    for (const Route& route : routes()) {
        Asked asked{.http = request};
        if (!match_route(route.path, request.path, asked.name)) continue;
        if (route.method != request.method) {
            allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
            continue;
        }
        if (auto read = read_query(route, request, asked); !read) return respond(http_error(read.error()));
        if (auto answer = (this->*route.answer)(asked)) {
            if (!route.changes_settings) return respond(std::move(*answer));
            return answer_when_durable(std::move(*answer), respond, std::exchange(undo_, {}));
        }
        const std::int64_t until_ns = clock_.now_ns() + static_cast<std::int64_t>(asked.wait_s) * 1'000'000'000;
        auto gone = std::make_shared<bool>(false);
        if (request.on_gone) request.on_gone([gone] { *gone = true; });
        waiting_.push_back({.request = request,
                            .respond = respond,
                            .route = &route,
                            .name = asked.name,
                            .after = asked.after,
                            .until_ns = until_ns,
                            .gone = std::move(gone)});
        return;
    }
    if (answer_by_extension(request, respond, allowed)) return;
    if (!allowed.empty()) return respond(method_not_allowed(allowed));
    const bool is_queue_path = request.path.size() > 1 && (request.path[1] == "queue" || request.path[1] == "history");
    if (extension_ == nullptr && is_queue_path) {
        return respond(http_error(404, "not_found",
                                  "this allocator runs no jobs: its config has no [scheduler]; see docs/policies.md"));
    }
    respond(no_such_path());
}

bool AllocatorApi::answer_by_extension(const HttpRequest& request, const HttpRespond& respond, std::string& allowed) {
    if (extension_ == nullptr) return false;
    const auto all = extension_->routes();
    for (std::size_t i = 0; i < all.size(); ++i) {
        std::string name;
        if (!match_route(all[i].path, request.path, name)) continue;
        if (all[i].method != request.method) {
            allowed += (allowed.empty() ? "" : ", ") + std::string(all[i].method);
            continue;
        }
        const auto known = check_query_keys(all[i].query, request);
        if (known) {
            extension_->answer(i, request, name, respond);
        } else {
            respond(http_error(known.error()));
        }
        return true;
    }
    return false;
}

void AllocatorApi::answer_when_durable(HttpResponse answer, const HttpRespond& respond, std::function<void()> undo) {
    if (!when_durable_ || answer.status >= 400) return respond(std::move(answer));
    when_durable_([this, answer = std::move(answer), respond, undo = std::move(undo)](const Result<void>& saved) {
        if (saved) return respond(answer);
        undo();
        plan_is_due_ = true;
        respond(http_error(saved.error()));
    });
}

void AllocatorApi::answer_waiting(bool all) {
    const std::int64_t now_ns = clock_.now_ns();
    std::erase_if(waiting_, [&](const Waiting& waiting) {
        if (*waiting.gone) return true;
        const Asked asked{.http = waiting.request,
                          .name = waiting.name,
                          .after = waiting.after,
                          .may_wait = !all && now_ns < waiting.until_ns};
        auto answer = (this->*waiting.route->answer)(asked);
        if (answer) waiting.respond(std::move(*answer));
        return answer.has_value();
    });
}

}  // namespace larder::allocator
