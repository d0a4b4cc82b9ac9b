#include "allocator/service/allocator_api.h"

#include <boost/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ranges>
#include <utility>

#include "allocator/protocol/codec.h"
#include "allocator/service/json_lists.h"
#include "allocator/service/plan_json.h"
#include "allocator/service/whatif.h"
#include "base/server/http_route.h"
#include "base/server/json_http.h"
#include "base/server/json_reader.h"
#include "base/server/json_text.h"
#include "base/server/page.h"
#include "base/units.h"

namespace larder::allocator {
namespace json = boost::json;
namespace {

// Planning takes a tenth of the thread's time, however large the cluster is. If plans are slow, one plan serves several
// reports. New nodes wait for a plan, so if half a second is too short for that, planning takes up to a fifth.
constexpr std::int64_t kPauseAfterPlan = 9;  // times the plan's time
constexpr std::int64_t kPauseAfterSlowPlan = 4;
constexpr std::int64_t kPauseMax_ns = 500'000'000;
// The pause after a what-if of a caller without the role of an operator, times the what-if's time. Pauses may be put
// off until they and the what-ifs come to kWhatIfBurst_ns, so that a page may ask often while a slider moves.
constexpr std::int64_t kPauseAfterWhatIf = 4;
constexpr std::int64_t kWhatIfBurst_ns = 2'000'000'000;
// Without a report, a new plan is made after this time, because nodes may have fallen silent.
constexpr std::int64_t kStale_ns = 1'000'000'000;

// Bandwidth moves from one node to another within two reports of each. A lease that stays cut for longer causes an
// event.
constexpr std::int64_t kHandover_ns = 5'000'000'000;

// Ticks come every 100 ms. After a longer time without any, the thread was kept from taking reports: by a plan, a slow
// disk, a stopped process or a busy machine.
constexpr std::int64_t kPause_ns = 500'000'000;

// The JSON values of a usual report, or of a node's plan, fit into so many bytes; more are allocated as needed.
constexpr std::size_t kMessageBytes = 32 << 10;

// A node's first report waits so long at most for a plan that has the node.
constexpr std::int64_t kFirstPlan_ns = 1'000'000'000;

constexpr std::uint64_t kWaitMax_s = 60;
constexpr std::uint64_t kStatusMin_ms = 100;
constexpr std::uint64_t kStatusMax_ms = 3'600'000;

// A node may report under its own name and endpoint only. Otherwise one node could take another's place, or send the
// nodes of a group, and their token, to a host of its choice.
Result<void> check_binding(const HttpRequest& request, const NodeReport& report) {
    if (!request.node) return {};
    const std::string& own = request.authenticated_as;
    const auto refuse = [&](const std::string& what) { return fail(ErrorCode::permission_denied, what); };
    if (report.node != own) {
        return refuse("the token of node \"" + own + "\" cannot report node \"" + report.node +
                      "\": set allocator.node to the name of the token");
    }
    if (report.peer_endpoint.empty()) return {};
    if (report.peer_endpoint != request.node->peer_endpoint) {
        return refuse("node \"" + own + "\" may not lend its cache at " + report.peer_endpoint + ": " +
                      (request.node->peer_endpoint.empty()
                           ? "its token has no endpoint; write it behind the token"
                           : "the endpoint of its token is " + request.node->peer_endpoint));
    }
    if (report.peer_group != request.node->peer_group) {
        return refuse("node \"" + own + "\" may not join the peer group \"" + report.peer_group +
                      "\": the group of its token is \"" + request.node->peer_group + "\"");
    }
    return {};
}

// Reads the nodes where a job is expected. Returns them sorted, each once.
std::vector<std::string> read_expected_nodes(JsonReader& reader) {
    constexpr std::string_view kKey = "nodes";
    constexpr std::size_t kNameBytesMax = 255;
    std::vector<std::string> nodes;
    if (!reader.has(kKey)) return nodes;
    const json::array& names = reader.array(kKey);
    if (names.size() > kExpectedNodesMax) {
        reader.reject(kKey, "must have at most " + std::to_string(kExpectedNodesMax) + " names");
        return nodes;
    }
    nodes.reserve(names.size());
    for (const json::value& name : names) {
        if (!name.is_string() || name.get_string().empty() || name.get_string().size() > kNameBytesMax) {
            reader.reject(kKey, "must be names of 1 to " + std::to_string(kNameBytesMax) + " bytes");
            return nodes;
        }
        nodes.emplace_back(name.get_string());
    }
    std::ranges::sort(nodes);
    nodes.erase(std::ranges::unique(nodes).begin(), nodes.end());
    return nodes;
}

RegistrationOwner owner_of(const HttpRequest& request) {
    if (request.peer) return {.uid = request.peer->uid, .token = {}};
    return {.uid = {}, .token = request.authenticated_as};
}

std::string text_of(const std::optional<RegistrationOwner>& owner) {
    if (!owner) return "an operator or the scheduler: only operators";
    if (owner->uid) return "uid " + std::to_string(*owner->uid) + ": only that user and operators";
    return "the token or certificate \"" + owner->token + "\": only its holders and operators";
}

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

AllocatorApi::AllocatorApi(Cluster& cluster, const Clock& clock)
    : cluster_(cluster), clock_(clock), started_ns_(clock.now_ns()), turn_begun_ns_(started_ns_) {}

// --- the table of routes, and the search in it

std::span<const AllocatorApi::Route> AllocatorApi::routes() {
    static constexpr std::array kRoutes{
        Route{"GET", "/healthz", "", &AllocatorApi::get_health},
        Route{"GET", "/", "", &AllocatorApi::get_page},
        Route{"GET", "/page.js", "", &AllocatorApi::get_page},
        Route{"GET", "/page.css", "", &AllocatorApi::get_page},
        Route{"GET", "/metrics", "", &AllocatorApi::get_metrics},
        Route{"GET", "/v1", "", &AllocatorApi::get_index},
        Route{"GET", "/v1/access", "", &AllocatorApi::get_access},
        Route{"GET", "/v1/status", "", &AllocatorApi::get_status},
        Route{"POST", "/v1/reports", kProtocolQuery, &AllocatorApi::post_report},
        Route{"GET", "/v1/plan", "", &AllocatorApi::get_plan},
        Route{"GET", "/v1/nodes", "", &AllocatorApi::get_nodes},
        Route{"DELETE", "/v1/nodes/{name}", "", &AllocatorApi::delete_node, true},
        Route{"GET", "/v1/nodes/{name}/plan", "", &AllocatorApi::get_node_plan},
        Route{"GET", "/v1/datasets", "", &AllocatorApi::get_datasets},
        Route{"PUT", "/v1/datasets/{name}/pin", "", &AllocatorApi::put_pin, true},
        Route{"DELETE", "/v1/datasets/{name}/pin", "", &AllocatorApi::delete_pin, true},
        Route{"GET", "/v1/jobs", "", &AllocatorApi::get_jobs},
        Route{"GET", "/v1/jobs/{name}/rates", "", &AllocatorApi::get_rates},
        Route{"POST", "/v1/jobs", "", &AllocatorApi::post_job, true},
        Route{"DELETE", "/v1/jobs/{name}", "", &AllocatorApi::delete_job, true},
        Route{"PUT", "/v1/jobs/{name}/reservation", "", &AllocatorApi::put_reservation, true},
        Route{"POST", "/v1/jobs/{name}/placement", "", &AllocatorApi::post_placement, true},
        Route{"PUT", "/v1/remote", "", &AllocatorApi::put_remote, true},
        Route{"DELETE", "/v1/remote", "", &AllocatorApi::delete_remote, true},
        Route{"POST", "/v1/whatif", "", &AllocatorApi::post_whatif},
        Route{"GET", "/v1/events", "after wait_s", &AllocatorApi::get_events},
        Route{"GET", "/v1/events/stream", "after status_ms", &AllocatorApi::get_event_stream},
    };
    return kRoutes;
}

const AllocatorApi::Route* AllocatorApi::node_plan_route() {
    return &*std::ranges::find(routes(), &AllocatorApi::get_node_plan, &Route::answer);
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

// Reports that came in the meantime wait to be read, and a plan that is made before they are read must not leave out
// their nodes.
void AllocatorApi::begin_turn() {
    const std::int64_t now_ns = clock_.now_ns();
    const std::int64_t pause_ns = now_ns - std::exchange(turn_begun_ns_, now_ns);
    if (pause_ns > kPause_ns) cluster_.excuse_silence(pause_ns);
}

void AllocatorApi::handle(const HttpRequest& request, const HttpRespond& respond) {
    begin_turn();
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
        if (auto answer = (this->*route.answer)(asked)) return respond_to(route, std::move(*answer), respond);
        auto gone = std::make_shared<bool>(false);
        if (request.on_gone) request.on_gone([gone] { *gone = true; });
        if (auto node = std::exchange(unplanned_, {}); !node.empty()) {
            waiting_.push_back({.request = {},
                                .respond = respond,
                                .route = node_plan_route(),
                                .name = std::move(node),
                                .protocol = asked.protocol,
                                .until_ns = clock_.now_ns() + kFirstPlan_ns,
                                .gone = std::move(gone)});
            return;
        }
        const std::int64_t until_ns = clock_.now_ns() + static_cast<std::int64_t>(asked.wait_s) * 1'000'000'000;
        waiting_.push_back({.request = request,
                            .respond = respond,
                            .route = &route,
                            .name = asked.name,
                            .after = asked.after,
                            .protocol = asked.protocol,
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

void AllocatorApi::respond_to(const Route& route, HttpResponse answer, const HttpRespond& respond) {
    Change change = std::exchange(change_, {});
    if (!route.changes_settings && !change.undo) return respond(std::move(answer));
    answer_when_durable(std::move(answer), respond, std::move(change), std::exchange(promised_to_, {}));
}

void AllocatorApi::answer_when_durable(HttpResponse answer, const HttpRespond& respond, Change given,
                                       const std::string& node) {
    if (!when_durable_ || answer.status >= 400) return respond(std::move(answer));
    const auto change = std::make_shared<Change>(std::move(given));
    if (!change->setting.empty()) changes_[change->setting].push_back(change);
    const auto then = [this, answer = std::move(answer), respond, change, node](const Result<void>& saved) {
        if (const auto ended = end_change(change, saved); !ended) return respond(http_error(ended.error()));
        if (!node.empty() && is_promised(node)) cluster_.confirm_promises(node);
        respond(answer);
    };
    if (!node.empty() && when_promised_) return when_promised_(node, then);
    when_durable_(then);
}

// The later changes of the setting were made to a value that is undone. So they are undone with it, the last one first,
// and answered with its error.
Result<void> AllocatorApi::end_change(const std::shared_ptr<Change>& change, const Result<void>& saved) {
    if (change->error) return std::unexpected(*change->error);
    std::vector<std::shared_ptr<Change>> undone{change};
    if (const auto found = changes_.find(change->setting); found != changes_.end()) {
        std::vector<std::shared_ptr<Change>>& waiting = found->second;
        const auto own = std::ranges::find(waiting, change);
        if (!saved) undone.assign(own, waiting.end());
        waiting.erase(own, saved ? own + 1 : waiting.end());
        if (waiting.empty()) changes_.erase(found);
    }
    if (saved) return {};
    for (const std::shared_ptr<Change>& each : undone | std::views::reverse) {
        if (each->undo) each->undo();
        each->error = saved.error();
    }
    if (withdraw_ && !change->setting.empty()) withdraw_(change->setting);
    plan_is_due_ = true;
    return saved;
}

bool AllocatorApi::is_promised(const std::string& node) const {
    if (is_promised_) return is_promised_(node);
    return !all_durable_ || all_durable_();
}

void AllocatorApi::answer_waiting(bool all) {
    if (waiting_.empty()) return;
    const std::int64_t now_ns = clock_.now_ns();
    std::erase_if(waiting_, [&](const Waiting& waiting) {
        if (*waiting.gone) return true;
        const Asked asked{.http = waiting.request,
                          .name = waiting.name,
                          .after = waiting.after,
                          .protocol = waiting.protocol,
                          .may_wait = !all && now_ns < waiting.until_ns};
        auto answer = (this->*waiting.route->answer)(asked);
        if (answer) respond_to(*waiting.route, std::move(*answer), waiting.respond);
        return answer.has_value();
    });
}

// --- plans, and the reports of nodes

void AllocatorApi::tick() {
    begin_turn();
    const bool stale = plan_is_due_ || clock_.now_ns() - planned_ns_ >= kStale_ns;
    if (stale && !cluster_.nodes().empty()) static_cast<void>(replan(false));
    if (extension_ != nullptr) extension_->tick();
    history_.update(cluster_, observed_, clock_.now_ns(), unix_time_ns() / 1'000'000);
    answer_waiting(false);
    push_to_streams();
}

void AllocatorApi::end_waits() {
    answer_waiting(true);
    streams_.end();
}

Result<void> AllocatorApi::replan(bool at_once) {
    const std::int64_t begun_ns = clock_.now_ns();
    if (!at_once && begun_ns < next_plan_ns_) return {};
    plan_is_due_ = false;
    const auto number = cluster_.replan(begun_ns);
    planned_ns_ = clock_.now_ns();
    const std::int64_t took_ns = planned_ns_ - begun_ns;
    next_plan_ns_ =
        planned_ns_ + std::min(kPauseAfterPlan * took_ns, std::max(kPauseAfterSlowPlan * took_ns, kPauseMax_ns));
    if (!number) {
        ++counts_.plans_failed;
        return std::unexpected(number.error());
    }
    counts_.add_plan(planned_ns_ - begun_ns);
    watch_.compare_with_last(cluster_, planned_ns_);
    return {};
}

Result<void> AllocatorApi::take_report(const Asked& asked, Reporter& reporter) {
    std::array<unsigned char, kMessageBytes> memory;
    json::monotonic_resource storage(memory.data(), memory.size());
    const auto object = request_object(asked.http, &storage);
    if (!object) return std::unexpected(object.error());
    const auto report = read_node_report(*object, "", asked.protocol);
    if (!report) return std::unexpected(report.error());
    reporter.node = asked.http.node ? asked.http.authenticated_as : report->node;
    reporter.peers_etag = report->peers_etag;
    if (auto bound = check_binding(asked.http, *report); !bound) return bound;
    const std::int64_t now_ns = clock_.now_ns();
    if (auto taken = cluster_.report(*report, now_ns); !taken) return taken;
    observed_.report(cluster_.nodes().at(reporter.node).last, now_ns);
    return {};
}

std::optional<HttpResponse> AllocatorApi::post_report(const Asked& asked) {
    Reporter reporter;
    const std::string& node = reporter.node;
    if (const auto taken = take_report(asked, reporter); !taken) {
        ++counts_.reports_refused;
        events_.add_seldom(EventKind::report_refused, node, taken.error().message, clock_.now_ns());
        return http_error(taken.error());
    }
    ++counts_.reports_taken;
    if (auto made = replan(false); !made) return http_error(made.error());
    if (!cluster_.planned_index(node)) {
        // The first reports of many nodes, as after a change of leader, share the next plan.
        plan_is_due_ = true;
        unplanned_ = std::move(reporter.node);
        return std::nullopt;
    }
    return node_plan(node, asked.protocol, reporter.peers_etag);
}

std::optional<HttpResponse> AllocatorApi::get_node_plan(const Asked& asked) {
    if (asked.may_wait && !cluster_.planned_index(asked.name)) return std::nullopt;
    return node_plan(asked.name, asked.protocol);
}

HttpResponse AllocatorApi::node_plan(const std::string& node, unsigned protocol,
                                     std::optional<std::uint64_t> known_peers_etag) {
    const std::int64_t now_ns = clock_.now_ns();
    const auto part = cluster_.plan_for(node, now_ns, known_peers_etag);
    if (!part) return http_error(part.error());
    // After a power cut, the floor of a node that is cut off counts only if it is on record.
    if (part->lease.number != 0 && !is_promised(node)) {
        promised_to_ = node;
        change_.undo = [this, node, number = part->lease.number] {
            cluster_.withdraw_lease(node, number, clock_.now_ns());
        };
    } else if (part->lease.number != 0) {
        cluster_.confirm_promises(node);
    }
    observed_.leased(node, part->lease, now_ns);
    const auto short_since_ns = observed_.lease_of(node)->short_since_ns;
    if (short_since_ns && now_ns - *short_since_ns >= kHandover_ns) {
        events_.add_seldom(EventKind::lease_cut, node,
                           "node \"" + node + "\" is leased less than planned: other nodes still hold the rest",
                           now_ns);
    }
    std::array<unsigned char, kMessageBytes> memory;
    json::monotonic_resource storage(memory.data(), memory.size());
    HttpResponse response = json_response(to_json(*part, now_ns, protocol, &storage));
    response.headers.emplace_back(kProtocolHeader, std::to_string(kProtocolNewest));
    return response;
}

// --- the routes for operators and viewers

std::optional<HttpResponse> AllocatorApi::get_health(const Asked&) {
    return HttpResponse{.content_type = "text/plain", .body = "ok\n"};
}

std::optional<HttpResponse> AllocatorApi::get_page(const Asked& asked) {
    return page_response(asked.http);
}

std::optional<HttpResponse> AllocatorApi::get_access(const Asked& asked) {
    return json_response({{"name", asked.http.authenticated_as}, {"role", asked.http.role}});
}

std::optional<HttpResponse> AllocatorApi::get_status(const Asked&) {
    std::size_t alive = 0;
    for (const NodeView& node : view().nodes) alive += node.alive ? 1 : 0;
    json::object status{{"pid", ::getpid()},
                        {"unix_time_ms", unix_time_ns() / 1'000'000},
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
    return HttpResponse{.content_type = kMetricsType, .body = std::move(text)};
}

// --- reads

ClusterView AllocatorApi::view() {
    // If no plan can be made, the view shows the last one, which stays in force.
    static_cast<void>(replan(false));
    return view_of(cluster_, observed_, history_, clock_.now_ns());
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

std::optional<HttpResponse> AllocatorApi::get_rates(const Asked& asked) {
    const std::deque<RateSample>* samples = history_.samples_of(asked.name);
    if (samples == nullptr) return http_error(Error{ErrorCode::not_found, "no job \"" + asked.name + "\" runs"});
    return json_response(to_json(*samples));
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
    const std::int64_t begun_ns = clock_.now_ns();
    if (asked.http.is_operator) return compare(asked);
    if (begun_ns < next_what_if_ns_) {
        const std::int64_t wait_s = (next_what_if_ns_ - begun_ns) / 1'000'000'000 + 1;
        HttpResponse later = http_error(429, "too_many_requests",
                                        "what-ifs take too much of the allocator's time: wait " +
                                            std::to_string(wait_s) + " s, or ask as an operator");
        later.headers.emplace_back("Retry-After", std::to_string(wait_s));
        return later;
    }
    HttpResponse answer = compare(asked);
    const std::int64_t took_ns = clock_.now_ns() - begun_ns;
    next_what_if_ns_ = std::max(next_what_if_ns_, begun_ns - kWhatIfBurst_ns) + (1 + kPauseAfterWhatIf) * took_ns;
    return answer;
}

HttpResponse AllocatorApi::compare(const Asked& asked) {
    const auto object = request_object(asked.http);
    if (!object) return http_error(object.error());
    auto change = read_change(*object, "");
    if (!change) return http_error(change.error());
    // A job that somebody would start shares the bandwidth of that user's other jobs.
    for (AddedJob& added : change->add_jobs) {
        if (asked.http.peer) added.spec.user = asked.http.peer->uid;
    }
    for (const AddedPin& pin : change->pins) {
        if (auto good = cluster_.check_pin(pin.dataset, pin.bytes, clock_.now_ns()); !good) {
            return http_error(good.error());
        }
    }
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
    auto spec = read_job_registration(*object, "");
    if (!spec) return http_error(spec.error());
    if (!asked.http.is_operator) {
        if (spec->user) {
            return http_error(
                Error{ErrorCode::permission_denied, "user: only operators register jobs for a user that they name"});
        }
        if (spec->cache_bytes > 0) {
            return http_error(Error{ErrorCode::permission_denied, "cache_bytes: only operators reserve cache"});
        }
        spec->owner = owner_of(asked.http);
        spec->user = spec->owner->uid;
    }
    if (!spec->dataset.empty() || spec->cache_bytes > 0) {
        if (auto free = cluster_.check_reservation(*spec, clock_.now_ns()); !free) return http_error(free.error());
    }
    change_ = {.setting = "job/" + spec->name,
               .undo = [this, name = spec->name] { static_cast<void>(cluster_.remove_job(name)); },
               .error = {}};
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
        if (!asked.http.is_operator && before->owner != owner_of(asked.http)) {
            return http_error(Error{ErrorCode::permission_denied, "job \"" + asked.name + "\" was registered by " +
                                                                      text_of(before->owner) + " may remove it"});
        }
        change_ = {.setting = "job/" + asked.name,
                   .undo = [this, spec = *before] { static_cast<void>(cluster_.register_job(spec)); },
                   .error = {}};
    }
    return answer_change(cluster_.remove_job(asked.name), EventKind::job_removed, asked.name,
                         "job " + asked.name + " is no longer registered", false);
}

std::optional<HttpResponse> AllocatorApi::put_reservation(const Asked& asked) {
    const auto object = request_object(asked.http);
    if (!object) return http_error(object.error());
    JsonReader reader(*object, "");
    const std::uint64_t cache_bytes = reader.unsigned_integer("cache_bytes");
    const double floor = reader.number("bandwidth_floor_bytes_per_second");
    const std::vector<std::string> nodes = read_expected_nodes(reader);
    if (auto finished = reader.finish(); !finished) return http_error(finished.error());
    bool is_reserved = false;
    if (const JobRegistration* const before = cluster_.registered(asked.name)) {
        change_.setting = "job/" + asked.name;
        is_reserved = before->cache_bytes == cache_bytes && before->bandwidth_floor_bytes_per_second == floor;
        // A caller may repeat its request often: without a change there is no event, and no new plan.
        if (is_reserved && before->expected_on == nodes) return done_response({});
        change_.undo = [this, spec = *before] {
            static_cast<void>(cluster_.reserve_for_job(
                spec.name, spec.cache_bytes, spec.bandwidth_floor_bytes_per_second, clock_.now_ns(), spec.expected_on));
        };
    }
    const auto reserved = cluster_.reserve_for_job(asked.name, cache_bytes, floor, clock_.now_ns(), nodes);
    if (is_reserved && reserved) {
        // Not planned at once, and no event: many waiting jobs may be expected elsewhere at the same time.
        watch_.add_reason("job " + asked.name + " is expected on other nodes");
        plan_is_due_ = true;
        if (!cluster_.nodes().empty()) static_cast<void>(replan(false));
        return done_response({});
    }
    return answer_change(reserved, EventKind::job_registered, asked.name,
                         "job " + asked.name + " reserves " + format_bytes(cache_bytes) + " of cache and " +
                             format_bytes_per_second(floor));
}

std::optional<HttpResponse> AllocatorApi::post_placement(const Asked& asked) {
    const auto object = request_object(asked.http);
    if (!object) return http_error(object.error());
    JsonReader reader(*object, "");
    const std::string node = reader.string("node");
    const bool runs = reader.boolean("runs");
    const std::uint64_t gpus = reader.optional_unsigned_integer("gpus").value_or(0);
    constexpr std::uint64_t kGpusMax = 1 << 16;  // sums over all nodes stay exact
    if (gpus > kGpusMax) reader.reject("gpus", "is too large");
    if (node.empty()) reader.reject("node", "must not be empty");
    if (auto finished = reader.finish(); !finished) return http_error(finished.error());
    if (asked.http.node && node != asked.http.authenticated_as) {
        return http_error(Error{ErrorCode::permission_denied, "the token of node \"" + asked.http.authenticated_as +
                                                                  "\" cannot place jobs on node \"" + node + "\""});
    }
    if (const JobRegistration* const before = cluster_.registered(asked.name)) {
        change_.setting = "job/" + asked.name;
        change_.undo = [this, name = asked.name, node, runs_on = before->runs_on] {
            const auto at = runs_on.find(node);
            static_cast<void>(
                cluster_.place_job(name, node, at == runs_on.end() ? std::nullopt : std::optional(at->second)));
        };
    }
    const auto placed =
        cluster_.place_job(asked.name, node, runs ? std::optional(static_cast<std::uint32_t>(gpus)) : std::nullopt);
    return answer_change(placed, EventKind::job_placed, asked.name,
                         "job " + asked.name + (runs ? " runs on node \"" : " has ended on node \"") + node + "\"");
}

AllocatorApi::Change AllocatorApi::change_of_pin(const std::string& dataset) {
    std::optional<std::uint64_t> before;
    if (const auto pin = cluster_.pins().find(dataset); pin != cluster_.pins().end()) before = pin->second;
    return {
        .setting = "pin/" + dataset,
        .undo = [this, dataset, before] { static_cast<void>(cluster_.pin_quota(dataset, before, clock_.now_ns())); },
        .error = {}};
}

std::optional<HttpResponse> AllocatorApi::put_pin(const Asked& asked) {
    const auto object = request_object(asked.http);
    if (!object) return http_error(object.error());
    JsonReader reader(*object, "");
    const std::uint64_t bytes = reader.unsigned_integer("bytes");
    if (auto finished = reader.finish(); !finished) return http_error(finished.error());
    change_ = change_of_pin(asked.name);
    return answer_change(cluster_.pin_quota(asked.name, bytes, clock_.now_ns()), EventKind::pin_set, asked.name,
                         "quota of " + asked.name + " is pinned to " + format_bytes(bytes));
}

std::optional<HttpResponse> AllocatorApi::delete_pin(const Asked& asked) {
    change_ = change_of_pin(asked.name);
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
    change_ = {
        .setting = "remote", .undo = [this, before] { static_cast<void>(cluster_.set_remote(before)); }, .error = {}};
    return answer_change(
        changed, EventKind::remote_set, "",
        "the remote bandwidth is now " + format_bytes_per_second(cluster_.options().remote_bytes_per_second));
}

}  // namespace larder::allocator
