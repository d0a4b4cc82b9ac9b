#include "scheduler/engines/slurm/place_agent.h"

#include <boost/json.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/server/http.h"
#include "base/server/json_reader.h"
#include "base/server/json_text.h"
#include "base/server/percent_encoding.h"
#include "base/units.h"
#include "scheduler/engines/slurm/answer_fields.h"
#include "scheduler/live/engine_event_names.h"

namespace larder::scheduler::slurm {
namespace json = boost::json;
namespace {

constexpr std::int64_t kSecond_ns = 1'000'000'000;
// For actions, and for an answer. Of several allocators, one that hangs must not keep the agent from the next leader.
constexpr std::int64_t kWait_s = 20;
constexpr std::int64_t kWaitAmongSeveral_s = 2;
constexpr std::int64_t kAsk_ms = 30'000;
constexpr std::int64_t kAskAmongSeveral_ms = 4'000;
constexpr std::int64_t kRetry_ns = kSecond_ns / 2;
constexpr std::size_t kSubmitMax = 200;  // jobs of one request
constexpr std::size_t kBatchMax = 500;   // commands of one scontrol
constexpr const char* kAgent = "slurm";

std::int64_t unix_s() {
    return unix_time_ns() / kSecond_ns;
}

json::object to_json(const EngineEvent& event) {
    json::object object{{"kind", name(event.kind)}};
    if (!event.message.empty()) object["message"] = event.message;
    if (event.at_s) object["at_unix_s"] = *event.at_s;
    if (!event.node.empty()) {
        object["node"] = event.node;
        if (event.inventory) {
            object["gpus"] = event.inventory->gpus;
            object["gpu_type"] = event.inventory->gpu_type;
        }
        return object;
    }
    object["queue"] = event.queue;
    object["job"] = event.job;
    object["attempt"] = event.attempt;
    if (event.exit_code) object["exit_code"] = *event.exit_code;
    if (event.exit_signal) object["exit_signal"] = *event.exit_signal;
    if (event.kind == EngineEvent::Kind::ended) object["was_stopping"] = event.was_stopping;
    if (!event.stopped_by.empty()) object["stopped_by"] = event.stopped_by;
    if (event.for_good) object["for_good"] = true;
    if (!event.also_rejected.empty()) object["also_rejected"] = json::value_from(event.also_rejected);
    json::array devices;
    for (const GrantedDevices& granted : event.devices) {
        devices.push_back(json::object{{"node", granted.node}, {"devices", json::value_from(granted.devices)}});
    }
    if (!devices.empty()) object["devices"] = std::move(devices);
    return object;
}

bool is_over(EngineEvent::Kind kind) {
    using Kind = EngineEvent::Kind;
    return kind == Kind::rejected || kind == Kind::ended || kind == Kind::evicted || kind == Kind::lost;
}

AttemptId id_of_attempt(const EngineEvent& event) {
    return {.queue = event.queue, .job = event.job, .attempt = event.attempt};
}

PlacedStart start_of(const json::object& action) {
    PlacedStart start{.id = {.queue = text_in(action, "queue"),
                             .job = bytes_in(action, "job"),
                             .attempt = static_cast<std::uint32_t>(bytes_in(action, "attempt"))}};
    if (const json::value* const parameters = action.if_contains("parameters");
        parameters != nullptr && parameters->is_object()) {
        start.key = text_in(parameters->get_object(), "slurm_job");
    }
    if (const json::value* const grace = action.if_contains("grace_s"); grace != nullptr && grace->is_number()) {
        start.grace_s = grace->to_number<double>();
    }
    for (const json::value& task : array_in(action, "tasks")) {
        if (!task.is_object()) continue;
        start.gpus_by_node.emplace_back(text_in(task.get_object(), "node"),
                                        static_cast<std::uint32_t>(array_in(task.get_object(), "gpus").size()));
    }
    return start;
}

// True for an answer that says nothing about the request: no allocator leads, or it has too much to do.
bool is_for_later(const HttpResponse& answer) {
    return answer.status == kHttpMisdirected || answer.status == 429 || answer.status == 503;
}

std::string first_line(const std::string& text) {
    return text.substr(0, text.find('\n'));
}

Result<double> number_of(const std::string& key, const std::string& text) {
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size()) {
        return fail(ErrorCode::invalid_argument, key + "=" + text + ": expected a number");
    }
    return number;
}

}  // namespace

Result<std::string> submission_of(const JobRow& row, std::uint32_t gpus_of_a_node, std::string_view hierarchy) {
    if (row.gpus_per_node == 0) {
        return fail(ErrorCode::invalid_argument, "the job asks for no GPU of each node (--gpus-per-node)");
    }
    if (row.has_mixed_gpus) return fail(ErrorCode::invalid_argument, "the job asks for GPUs of several types");
    // Larder may put two pods on one node, and Slurm may not.
    if (row.nodes_wanted > 1 && 2 * row.gpus_per_node <= gpus_of_a_node) {
        return fail(ErrorCode::invalid_argument,
                    "a job of several nodes needs more than half of the GPUs of each node");
    }
    json::object job{{"name", PlacedJobs::name_of(row.key)},
                     {"command", json::array{"sbatch", row.key}},
                     {"directory", "/"},
                     {"reader_uid", row.uid},
                     {"engine_parameters", json::object{{"slurm_job", row.key}}}};
    json::array pods;
    for (std::uint32_t i = 0; i < row.nodes_wanted; ++i) pods.push_back(row.gpus_per_node);
    job["pods"] = std::move(pods);
    if (!row.account.empty()) job["tenant"] = row.account;
    if (!row.gpu_type.empty()) job["gpu_type"] = row.gpu_type;
    job["preemptible"] = row.may_requeue;
    if (!hierarchy.empty()) job["hierarchy"] = hierarchy;
    for (const auto& [key, value] : row.mark ? row.mark->words : std::map<std::string, std::string>{}) {
        if (key == "hierarchy" && !hierarchy.empty() && value != hierarchy) {
            return fail(ErrorCode::invalid_argument,
                        "the partition " + row.partition + " is the hierarchy " + std::string(hierarchy));
        }
        if (key == "dataset" || key == "hierarchy" || key == "together" || key == "cell") {
            job[key] = value;
        } else if (key == "ideal-rate") {
            const auto rate = parse_bytes_per_second(value);
            if (!rate) return std::unexpected(rate.error().within(key + "=" + value));
            job["ideal_bytes_per_second"] = *rate;
        } else if (key == "epochs" || key == "grace" || key == "restart-cost") {
            const auto number = number_of(key, value);
            if (!number) return std::unexpected(number.error());
            job[key == "epochs" ? "epochs" : key == "grace" ? "grace_s" : "restart_s"] = *number;
        } else {
            return fail(ErrorCode::invalid_argument, "unknown word " + key + " in the line #LARDER");
        }
    }
    return json_text(job);
}

PlaceAgent::PlaceAgent(PlaceOptions options)
    : options_(std::move(options)), has_several_(options_.endpoint.contains(',')), client_(options_.endpoint) {}

// Says a text that repeats only once.
void PlaceAgent::say(const std::string& text) {
    if (text != said_ && !text.empty()) options_.log(text);
    said_ = text;
}

Result<HttpResponse> PlaceAgent::ask(HttpClient& client, std::string_view method, const std::string& target,
                                     const std::string& body, std::int64_t wait_s) const {
    auto http = http_client_options(options_.credentials);
    if (!http) return std::unexpected(http.error());
    // A change may take long, and is not tried elsewhere while it may yet be carried out.
    const bool may_hang = has_several_ && method == "GET";
    http->timeout_ms = (may_hang ? kAskAmongSeveral_ms : kAsk_ms) + wait_s * 1000;
    auto response = client.request(method, target, body, *http);
    if (!response) {
        return fail(response.error().code,
                    "no allocator answers at " + options_.endpoint + ": " + response.error().message);
    }
    return response;
}

Error PlaceAgent::run() {
    std::thread([this] { wait_for_actions(); }).detach();
    const SteadyClock clock;
    while (true) {
        const std::int64_t begun_ns = clock.now_ns();
        const auto step = [&]() -> Result<void> {
            if (auto looked = look(); !looked) return looked;
            bool attached = false;
            {
                const std::lock_guard lock(mutex_);
                attached = !session_.empty();
            }
            if (!attached) {
                knows_queue_ = false;
                if (auto done = attach(); !done) return done;
            }
            if (!knows_queue_) {
                if (auto done = refresh(); !done) return done;
            } else if (auto done = read_events(); !done) {
                return done;
            }
            take_actions();
            carry_out();
            if (auto done = cancel_in_larder(); !done) return done;
            if (auto done = submit(); !done) return done;
            carry_out();  // notes about refused jobs
            return report();
        }();
        if (!step && step.error().code == ErrorCode::permission_denied) return step.error();
        say(step ? "" : step.error().message);
        // Actions are carried out at once, from the last look.
        while (true) {
            const std::int64_t left_ns = begun_ns + options_.look_ns - clock.now_ns();
            if (left_ns <= 0) break;
            {
                std::unique_lock lock(mutex_);
                changed_.wait_for(lock, std::chrono::nanoseconds(left_ns), [&] { return !actions_.empty(); });
                if (actions_.empty()) continue;
            }
            take_actions();
            carry_out();
            if (const auto reported = report(); !reported) say(reported.error().message);
        }
    }
}

// --- Larder's actions

// Runs on a thread of its own. Actions count as carried out once they are taken: what is lost with this process follows
// again from the state with which the next one attaches.
void PlaceAgent::wait_for_actions() {
    HttpClient client(options_.endpoint);
    std::string session;
    std::uint64_t after = 0;
    while (true) {
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return !session_.empty(); });
            if (session != session_) after = 0;
            session = session_;
        }
        const std::int64_t wait_s = has_several_ ? kWaitAmongSeveral_s : kWait_s;
        const auto answer = ask(client, "GET",
                                "/v1/engine/actions?session=" + percent_encode(session) +
                                    "&after=" + std::to_string(after) + "&wait_s=" + std::to_string(wait_s),
                                "", wait_s);
        if (!answer || (answer->status != 200 && answer->status != 409)) {
            sleep_ns(kRetry_ns);
            continue;
        }
        const std::lock_guard lock(mutex_);
        if (session != session_) continue;
        if (answer->status == 409) {
            session_.clear();
            continue;
        }
        const auto object = parse_json_object(answer->body, "the allocator's actions");
        if (!object) continue;
        const json::array& actions = array_in(*object, "actions");
        for (const json::value& action : actions) {
            if (action.is_object()) after = std::max(after, bytes_in(action.get_object(), "number"));
        }
        if (!actions.empty()) actions_.push_back(answer->body);
        changed_.notify_all();
    }
}

void PlaceAgent::take_actions() {
    std::vector<std::string> answers;
    {
        const std::lock_guard lock(mutex_);
        answers.swap(actions_);
    }
    for (const std::string& answer : answers) {
        const auto object = parse_json_object(answer, "the allocator's actions");
        if (!object) continue;
        for (const json::value& value : array_in(*object, "actions")) {
            if (!value.is_object()) continue;
            const json::object& action = value.get_object();
            const PlacedStart start = start_of(action);
            if (text_in(action, "do") == "start") {
                jobs_.start(start, rows_.rows(), unix_s());
            } else {
                jobs_.stop(start.id, rows_.rows(), unix_s());
            }
        }
    }
}

Result<void> PlaceAgent::attach() {
    json::array nodes;
    for (const EngineEvent& event : jobs_.node_events()) nodes.push_back(to_json(event));
    json::array attempts;
    const std::vector<EngineEvent> events = jobs_.attempt_events();
    for (const EngineEvent& event : events) attempts.push_back(to_json(event));
    const json::object state{
        {"agent", kAgent},
        {"drain_command", "scontrol update nodename={node} state=drain reason=\"drained by hand\""},
        {"undrain_command", "scontrol update nodename={node} state=resume"},
        {"nodes", std::move(nodes)},
        {"attempts", std::move(attempts)}};
    const auto answer = ask(client_, "POST", "/v1/engine/attach", json_text(state));
    if (!answer) return std::unexpected(answer.error());
    if (answer->status != 200) return std::unexpected(error_of_response(*answer).within("attach to the allocator"));
    const auto object = parse_json_object(answer->body, "the allocator's answer");
    if (!object) return std::unexpected(object.error());
    for (const EngineEvent& event : events) {
        if (is_over(event.kind)) jobs_.forget_ended(id_of_attempt(event));
    }
    // The state says all of it.
    report_.clear();
    static_cast<void>(jobs_.take_events());
    reports_ = 0;
    const std::lock_guard lock(mutex_);
    session_ = text_in(*object, "session");
    actions_.clear();
    changed_.notify_all();
    return {};
}

// The allocator skips a report with a number that it has had. So a report whose answer was lost is sent again as it
// was, and what has happened since follows in the next one.
Result<void> PlaceAgent::report() {
    while (true) {
        if (report_.empty()) report_ = jobs_.take_events();
        if (report_.empty()) return {};
        const auto done = send_report();
        if (!done) return std::unexpected(done.error());
        if (!*done) return {};
    }
}

// False if there is no session.
Result<bool> PlaceAgent::send_report() {
    json::array events;
    for (const EngineEvent& event : report_) events.push_back(to_json(event));
    std::string session;
    {
        const std::lock_guard lock(mutex_);
        session = session_;
    }
    if (session.empty()) return false;
    const json::object body{{"session", session}, {"number", reports_ + 1}, {"events", std::move(events)}};
    const auto answer = ask(client_, "POST", "/v1/engine/events", json_text(body));
    if (!answer) return std::unexpected(answer.error());
    // 409: the session is over. 400: this report will always be refused; the next state says all that it says.
    if (answer->status == 409 || answer->status == 400) {
        const std::lock_guard lock(mutex_);
        session_.clear();
        if (answer->status == 409) return false;
    }
    if (answer->status != 200) return std::unexpected(error_of_response(*answer).within("report to the allocator"));
    ++reports_;
    for (const EngineEvent& event : report_) {
        if (is_over(event.kind)) jobs_.forget_ended(id_of_attempt(event));
    }
    report_.clear();
    return true;
}

// --- Larder's queue

Result<void> PlaceAgent::refresh() {
    const auto get = [&](const std::string& target) -> Result<json::object> {
        const auto answer = ask(client_, "GET", target);
        if (!answer) return std::unexpected(answer.error());
        if (answer->status != 200) return std::unexpected(error_of_response(*answer));
        return parse_json_object(answer->body, "the allocator's answer");
    };
    // Asked first, so that nothing is missed between the two.
    const auto events = get("/v1/events?after=" + std::to_string(last_event_));
    if (!events) return std::unexpected(events.error());
    const auto queue = get("/v1/queue");
    if (!queue) return std::unexpected(queue.error());
    const auto history = get("/v1/history?limit=10000");
    if (!history) return std::unexpected(history.error());
    std::set<std::string> keys;
    const auto add_keys = [&](const json::object& list, auto take) {
        for (const json::value& job : array_in(list, "jobs")) {
            if (!job.is_object()) continue;
            if (const auto key = PlacedJobs::key_of(text_in(job.get_object(), "name"))) take(*key, job.get_object());
        }
    };
    add_keys(*queue, [&](const std::string& key, const json::object&) { keys.insert(key); });
    std::map<std::string, EndedInLarder> ended;  // the last end of each
    add_keys(*history, [&](const std::string& key, const json::object& job) {
        const json::value* const at = job.if_contains("ended_unix_s");
        if (at == nullptr || !at->is_number()) return;
        ended.emplace(key, EndedInLarder{.was_cancelled = text_in(job, "state") == "cancelled",
                                         .at_unix_s = static_cast<std::int64_t>(at->to_number<double>())});
    });
    jobs_.set_mirrored(keys, ended, rows_.rows());
    last_event_ = bytes_in(*events, "last");
    knows_queue_ = true;
    return {};
}

Result<void> PlaceAgent::read_events() {
    const auto answer = ask(client_, "GET", "/v1/events?after=" + std::to_string(last_event_));
    if (!answer) return std::unexpected(answer.error());
    if (answer->status != 200) return std::unexpected(error_of_response(*answer));
    const auto object = parse_json_object(answer->body, "the allocator's events");
    if (!object) return std::unexpected(object.error());
    const std::uint64_t last = bytes_in(*object, "last");
    // Some were dropped, or the allocator has restarted.
    if (bytes_in(*object, "first") > last_event_ + 1 || last < last_event_) {
        last_event_ = 0;
        return refresh();
    }
    last_event_ = last;
    for (const json::value& value : array_in(*object, "events")) {
        if (!value.is_object() || text_in(value.get_object(), "kind") != "job_ended") continue;
        if (const auto key = PlacedJobs::key_of(text_in(value.get_object(), "subject")))
            jobs_.note_over(*key, rows_.rows());
    }
    return {};
}

Result<void> PlaceAgent::cancel_in_larder() {
    for (const std::string& key : jobs_.to_cancel()) {
        const auto answer = ask(client_, "DELETE", "/v1/queue/" + percent_encode(PlacedJobs::name_of(key)));
        if (!answer) return std::unexpected(answer.error());
        if (answer->status >= 500 || is_for_later(*answer)) return std::unexpected(error_of_response(*answer));
        if (answer->status == 401 || answer->status == 403) {
            options_.log("job " + key +
                         " is over in Slurm, and cannot be cancelled in Larder: " + error_of_response(*answer).message);
        }
        jobs_.note_cancelled(key);
    }
    return {};
}

// True if Larder's queue has the job. A former agent has submitted it then. The job's name can also be in use by a
// registration.
Result<bool> PlaceAgent::is_in_queue(const std::string& key) {
    const auto answer = ask(client_, "GET", "/v1/queue/" + percent_encode(PlacedJobs::name_of(key)));
    if (!answer) return std::unexpected(answer.error());
    if (answer->status == 404) return false;
    if (answer->status != 200) return std::unexpected(error_of_response(*answer));
    const auto job = parse_json_object(answer->body, "the allocator's answer");
    if (!job) return std::unexpected(job.error());
    return !job->contains("ended_unix_s");
}

// True if the allocator has taken all of them.
Result<bool> PlaceAgent::submit_all(const std::vector<const JobRow*>& rows, const std::vector<std::string>& bodies) {
    std::string body;
    for (const std::string& job : bodies) body += (body.empty() ? "" : ",") + job;
    body = "{\"jobs\":[" + body + "]}";
    const auto answer = ask(client_, "POST", "/v1/queue", body);
    if (!answer) return std::unexpected(answer.error());
    bool is_known = false;
    if (answer->status == 409 && rows.size() == 1) {
        const auto queued = is_in_queue(rows.front()->key);
        if (!queued) return std::unexpected(queued.error());
        is_known = *queued;
    }
    if (answer->status == 200 || is_known) {
        for (const JobRow* row : rows) jobs_.note_submitted(row->key);
        return true;
    }
    const Error error = error_of_response(*answer);
    if (is_for_later(*answer)) return std::unexpected(error);
    if (rows.size() == 1) {
        jobs_.note_refused(rows.front()->key, error.message, rows_.rows(), unix_s());
        options_.log("job " + rows.front()->key + " is refused: " + error.message);
    }
    return false;
}

Result<std::string> PlaceAgent::submission(const JobRow& row) const {
    const auto found = options_.hierarchies.find(row.partition);
    if (found != options_.hierarchies.end()) return submission_of(row, gpus_of_a_node_, found->second);
    // Larder would give the job nodes on which Slurm does not start it.
    if (with_some_nodes_.contains(row.partition)) {
        return fail(ErrorCode::invalid_argument, "the partition " + row.partition +
                                                     " has only some of Larder's nodes, and the agent's config gives " +
                                                     "it no hierarchy");
    }
    return submission_of(row, gpus_of_a_node_);
}

Result<void> PlaceAgent::submit() {
    std::vector<const JobRow*> rows;
    std::vector<std::string> bodies;
    const auto flush = [&]() -> Result<void> {
        if (rows.empty()) return {};
        const auto done = submit_all(rows, bodies);
        if (!done) return std::unexpected(done.error());
        // The allocator takes all of a request or none: find those that it does not take.
        for (std::size_t i = 0; !*done && rows.size() > 1 && i < rows.size(); ++i) {
            if (auto one = submit_all({rows[i]}, {bodies[i]}); !one) return std::unexpected(one.error());
        }
        rows.clear();
        bodies.clear();
        return {};
    };
    for (const JobRow* row : jobs_.to_submit()) {
        auto body = submission(*row);
        if (!body) {
            jobs_.note_refused(row->key, body.error().message, rows_.rows(), unix_s());
            continue;
        }
        rows.push_back(row);
        bodies.push_back(std::move(*body));
        if (rows.size() < kSubmitMax) continue;
        if (auto flushed = flush(); !flushed) return flushed;
    }
    return flush();
}

// --- Slurm

Result<void> PlaceAgent::look() {
    std::string partitions;
    for (const std::string& partition : options_.partitions) partitions += (partitions.empty() ? "" : ",") + partition;
    const auto read = [&](const std::vector<std::string>& arguments) -> Result<std::string> {
        auto ran = options_.run_program(arguments, "");
        if (!ran) return std::unexpected(ran.error());
        if (ran->status != 0 || (ran->output.empty() && !ran->errors.empty())) {
            return fail(ErrorCode::unavailable, arguments.front() + " failed: " + first_line(ran->errors));
        }
        return std::move(ran->output);
    };
    const bool is_wide = jobs_.needs_nodes();
    const auto jobs_text = read({"squeue", "--noheader", "--array", "--states=all", "--partition=" + partitions,
                                 "--Format", queue_columns(is_wide)});
    if (!jobs_text) return std::unexpected(jobs_text.error());
    // Read second: then a job that was requeued because its node failed is never seen before that node's failure.
    const auto nodes_text =
        read({"sinfo", "--noheader", "--Node", "--partition=" + partitions, "--Format", kNodeColumns});
    if (!nodes_text) return std::unexpected(nodes_text.error());
    // The nodes of a partition, and its jobs, are not gone at once: such an answer must not end all jobs in Larder.
    if (nodes_text->empty())
        return fail(ErrorCode::unavailable, "sinfo shows no nodes in the partitions " + partitions);
    const auto nodes = parse_nodes(*nodes_text);
    if (!nodes) return std::unexpected(nodes.error());
    if (auto updated = rows_.update(*jobs_text, is_wide); !updated) return updated;
    gpus_of_a_node_ = 0;
    with_some_nodes_.clear();
    for (const NodeRow& node : *nodes) {
        gpus_of_a_node_ = std::max(gpus_of_a_node_, node.gpus);
        for (const std::string& partition : options_.partitions) {
            if (!node.partitions.contains(partition)) with_some_nodes_.insert(partition);
        }
    }
    jobs_.look(rows_.rows(), *nodes, unix_s());
    return {};
}

void PlaceAgent::carry_out() {
    SlurmCommands commands = jobs_.take_commands();
    if (commands.empty()) return;
    run_batch(commands.updates);
    place_jobs(commands.placements, commands.releases);
    for (const std::string& key : commands.signals) {
        const auto ran = options_.run_program({"scancel", "--full", "--signal=TERM", key}, "");
        const bool late = ran && (ran->status != 0 || ran->errors.find("already compl") != std::string::npos);
        if (late) jobs_.note_late_signal(key);
    }
    std::vector<std::vector<std::string>> releases;
    releases.reserve(commands.releases.size());
    for (const std::string& key : commands.releases) releases.push_back({"release", key});
    run_batch(releases);
    // Slurm ends a job whose batch script has ended. SIGKILL for all of the job would count as cancelled by its user.
    ask_for_devices(commands.asks);
    signal_jobs(commands.kills, {"--batch", "--signal=KILL"});
    signal_jobs(commands.cancels, {});
}

// A command that fails is given again after the next look, if it is still due.
void PlaceAgent::run_batch(const std::vector<std::vector<std::string>>& lines) {
    for (std::size_t begin = 0; begin < lines.size(); begin += kBatchMax) {
        std::string input;
        for (std::size_t i = begin; i < std::min(lines.size(), begin + kBatchMax); ++i) {
            for (const std::string& word : lines[i]) input += word + " ";
            input += "\n";
        }
        const auto ran = options_.run_program({"scontrol"}, input);
        if (!ran) return say(ran.error().message);
        if (!ran->errors.empty()) say("scontrol: " + first_line(ran->errors));
    }
}

// Slurm must know the place before the job is released, or it would run anywhere.
void PlaceAgent::place_jobs(const std::vector<SlurmCommands::Place>& placements, std::vector<std::string>& releases) {
    if (placements.empty()) return;
    std::string input;
    for (const SlurmCommands::Place& place : placements) {
        for (const std::string& word : place.words) input += word + " ";
        input += "\n";
    }
    const auto all = options_.run_program({"scontrol"}, input);
    if (!all) return say(all.error().message);
    for (const SlurmCommands::Place& place : placements) {
        if (all->status != 0 || !all->errors.empty()) {
            std::vector<std::string> words{"scontrol"};
            words.insert(words.end(), place.words.begin(), place.words.end());
            const auto one = options_.run_program(words, "");
            if (!one) return say(one.error().message);
            // An answer that did not come is no refusal: the next look tells.
            if (one->errors.find("Unable to contact") != std::string::npos) return say(first_line(one->errors));
            if (one->status != 0) {
                jobs_.refuse_placement(place.key, first_line(one->errors));
                continue;
            }
        }
        releases.push_back(place.key);
    }
}

// For people: an answer that does not come is not asked for again.
void PlaceAgent::ask_for_devices(const std::vector<std::string>& keys) {
    if (keys.empty()) return;
    std::string input;
    for (const std::string& key : keys) input += "show job " + key + "\n";
    const auto ran = options_.run_program({"scontrol", "--details", "--oneliner"}, input);
    if (!ran) return say(ran.error().message);
    std::string_view lines = ran->output;
    while (!lines.empty()) {
        const std::string_view line = lines.substr(0, lines.find('\n'));
        lines.remove_prefix(std::min(lines.size(), line.size() + 1));
        jobs_.note_devices(parse_devices(line));
    }
}

void PlaceAgent::signal_jobs(const std::vector<std::string>& keys, const std::vector<std::string>& options) {
    if (keys.empty()) return;
    std::vector<std::string> words{"scancel"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), keys.begin(), keys.end());
    const auto ran = options_.run_program(words, "");
    if (!ran) say(ran.error().message);
}

}  // namespace larder::scheduler::slurm
