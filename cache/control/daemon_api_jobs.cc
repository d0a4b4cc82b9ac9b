// DaemonApi: /v1/jobs and /v1/tasks.

#include <boost/json.hpp>

#include <charconv>
#include <set>

#include "base/server/json_reader.h"
#include "cache/control/api_json.h"
#include "cache/control/daemon_api.h"

namespace larder::cache {
namespace json = boost::json;
namespace {

json::object job_json(const JobStatistics& job, const std::optional<std::string>& user, double rate_bytes_per_second) {
    return {{"job", job.job},
            {"user", user ? json::value(*user) : json::value()},
            {"dataset", job.dataset},
            {"sessions", job.sessions},
            {"epoch", job.epoch},
            {"remote_rate", job.rate_limit_bytes_per_second},
            {"remote_burst_bytes", job.burst_bytes},
            {"counters", counters_json(job.counters)},
            {"unread_bytes", job.unread_bytes},
            {"effective_cache_bytes", job.effective_cache_bytes},
            {"stall_s", static_cast<double>(job.stall_ns) / 1e9},
            {"samples", job.samples_delivered},
            {"bytes", job.bytes_delivered},
            {"rate_bytes_per_second", rate_bytes_per_second}};
}

json::object limit_json(const std::string& job, JobLimit limit) {
    if (limit.burst_bytes == 0) limit.burst_bytes = default_burst_bytes(limit.rate_bytes_per_second);
    return {{"job", job}, {"rate_bytes_per_second", limit.rate_bytes_per_second}, {"burst_bytes", limit.burst_bytes}};
}

json::object task_json(const TaskView& task, const Node& node) {
    json::object object{
        {"id", task.id},           {"kind", task.kind},      {"dataset", task.dataset}, {"state", name(task.state)},
        {"done", task.done},       {"total", task.total},    {"unit", task.unit},       {"bytes_done", task.bytes_done},
        {"resumed", task.resumed}, {"seconds", task.seconds}};
    if (!task.plan.empty()) object["plan"] = json::parse(task.plan);
    for (const HttpOutage& outage : node.outages()) {
        if (task.state != TaskState::running || outage.endpoint != task.remote) continue;
        object["waits_for"] = outage_json(outage, node.now_ns());
    }
    if (task.error) object["error"] = json::object{{"code", name(task.error->code)}, {"message", task.error->message}};
    if (!task.result.empty()) object["result"] = json::parse(task.result);
    return object;
}

}  // namespace

void DaemonApi::get_jobs(const Asked&, const HttpRespond& respond) {
    node_.shards().collect([this, respond](const Result<ShardStatistics>& statistics) {
        if (!statistics) return respond(http_error(statistics.error()));
        UserDirectory::Wanted wanted;
        std::set<uid_t> users;
        for (const JobStatistics& job : statistics->jobs) {
            if (const auto user = node_.job_limits().user_of(job.job)) users.insert(*user);
        }
        wanted.users.assign(users.begin(), users.end());
        node_.users().learn(wanted, [this, respond, jobs = statistics->jobs] { respond(jobs_response(jobs)); });
    });
}

HttpResponse DaemonApi::jobs_response(const std::vector<JobStatistics>& running) const {
    json::array jobs;
    std::set<std::string> seen;
    for (const JobStatistics& job : running) {
        const auto uid = node_.job_limits().user_of(job.job);
        const auto user = uid ? std::optional(node_.users().user_name(*uid)) : std::nullopt;
        const double rate = job.sessions == 0 ? 0 : node_.rates().bytes_per_second(job.dataset_id, job.job);
        jobs.push_back(job_json(job, user, rate));
        seen.insert(job.job);
    }
    // Limits of jobs that have not started yet.
    for (const auto& [name, limit] : node_.job_limits().explicit_limits()) {
        if (seen.contains(name)) continue;
        const JobStatistics waiting{
            .job = name, .rate_limit_bytes_per_second = limit.rate_bytes_per_second, .burst_bytes = limit.burst_bytes};
        jobs.push_back(job_json(waiting, std::nullopt, 0));
    }
    return json_response({{"jobs", std::move(jobs)}});
}

void DaemonApi::put_job_limit(const Asked& asked, const HttpRespond& respond) {
    const std::string& job = asked.name;
    if (auto checked = check_job_name(job); !checked) return respond(http_error(checked.error()));
    const auto object = request_object(asked.http);
    if (!object) return respond(http_error(object.error()));
    JsonReader reader(*object, "request body");
    JobLimit limit{.rate_bytes_per_second = reader.number("rate_bytes_per_second"),
                   .burst_bytes = reader.optional_unsigned_integer("burst_bytes").value_or(0)};
    if (auto finished = reader.finish(); !finished) return respond(http_error(finished.error()));
    if (limit.burst_bytes == 0) limit.burst_bytes = default_burst_bytes(limit.rate_bytes_per_second);
    node_.limit_settings().set(job, limit, [respond, job, limit](const Result<void>& done) {
        if (!done) return respond(http_error(done.error()));
        respond(json_response(limit_json(job, limit)));
    });
}

void DaemonApi::delete_job_limit(const Asked& asked, const HttpRespond& respond) {
    if (auto checked = check_job_name(asked.name); !checked) return respond(http_error(checked.error()));
    node_.limit_settings().set(asked.name, std::nullopt, [this, respond, job = asked.name](const Result<void>& done) {
        if (!done) return respond(http_error(done.error()));
        respond(json_response(limit_json(job, node_.job_limits().own_limit_of(job))));
    });
}

void DaemonApi::get_task(const Asked& asked, const HttpRespond& respond) {
    respond_with_task(asked, false, respond);
}

void DaemonApi::delete_task(const Asked& asked, const HttpRespond& respond) {
    respond_with_task(asked, true, respond);
}

void DaemonApi::respond_with_task(const Asked& asked, bool cancel, const HttpRespond& respond) {
    const std::string& text = asked.name;
    std::uint64_t id = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    const bool is_number = error == std::errc{} && end == text.data() + text.size();
    if (!is_number || !node_.tasks().view(id)) {
        return respond(http_error(404, "not_found", "task \"" + text + "\" is unknown, or ended long ago"));
    }
    if (cancel) node_.tasks().cancel(id);
    respond(json_response(task_json(*node_.tasks().view(id), node_)));
}

}  // namespace larder::cache
