#include "scheduler/live/api.h"

#include <boost/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/server/json_http.h"
#include "base/server/json_reader.h"
#include "scheduler/live/json.h"

namespace larder::scheduler {
namespace json = boost::json;
namespace {

using allocator::EventKind;
using allocator::Role;
using allocator::Roles;

constexpr Roles kSubmitters = static_cast<Roles>(Role::job) | static_cast<Roles>(Role::operator_);
constexpr Roles kReaders = kSubmitters | static_cast<Roles>(Role::viewer) | static_cast<Roles>(Role::node);

constexpr std::size_t kJobsMax = 1000;  // of one submission
constexpr std::size_t kHistoryShown = 100;

enum class Answer : std::uint8_t { submit, list, show, cancel, why, history };

constexpr std::array kRoutes{
    allocator::Extension::Route{"POST", "/v1/queue", "", kSubmitters},
    allocator::Extension::Route{"GET", "/v1/queue", "", kReaders},
    allocator::Extension::Route{"GET", "/v1/queue/{name}", "", kReaders},
    allocator::Extension::Route{"DELETE", "/v1/queue/{name}", "", kSubmitters},
    allocator::Extension::Route{"GET", "/v1/queue/{name}/why", "", kReaders},
    allocator::Extension::Route{"GET", "/v1/history", "limit", kReaders},
};

constexpr std::array kEventKinds{
    std::pair{QueueNote::Kind::submitted, EventKind::job_submitted},
    std::pair{QueueNote::Kind::started, EventKind::job_started},
    std::pair{QueueNote::Kind::stopped, EventKind::job_stopped},
    std::pair{QueueNote::Kind::ended, EventKind::job_ended},
};

Result<std::size_t> limit_of(const HttpRequest& request) {
    const auto given = request.query.find("limit");
    if (given == request.query.end()) return kHistoryShown;
    const std::string& text = given->second;
    std::size_t limit = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
    if (error == std::errc{} && end == text.data() + text.size() && limit > 0) return limit;
    return fail(ErrorCode::invalid_argument, "query: limit is \"" + text + "\", but must be a whole number above 0");
}

// The lists leave the log out; who asks for one job gets it.
json::object row_of(const JobRecord& job) {
    json::object row = to_json(job);
    row.erase("log");
    return row;
}

}  // namespace

QueueApi::QueueApi(Parts parts, const allocator::ExtensionPlace& place)
    : clock_(place.clock),
      unix_offset_ns_(unix_time_ns() - place.clock.now_ns()),
      events_(place.events),
      store_(std::move(parts.store)),
      engine_(std::move(parts.engine)),
      scheduler_(std::move(parts.options), *engine_, place.cluster,
                 [this](const LiveRecord& change) { return store_->save(change); }) {
    scheduler_.restore(store_->found(), now());
}

Moment QueueApi::now() const {
    const std::int64_t steady_ns = clock_.now_ns();
    return {.unix_s = static_cast<double>(steady_ns + unix_offset_ns_) * 1e-9, .steady_ns = steady_ns};
}

std::span<const allocator::Extension::Route> QueueApi::routes() const {
    return kRoutes;
}

void QueueApi::tick() {
    scheduler_.tick(now());
    for (QueueNote& note : scheduler_.take_notes()) {
        const auto kind = std::ranges::find(kEventKinds, note.kind, &decltype(kEventKinds)::value_type::first);
        events_.add(kind->second, std::move(note.job), std::move(note.text));
    }
}

std::string QueueApi::metrics_text() {
    return queue_metrics(scheduler_);
}

HttpResponse QueueApi::answer(std::size_t route, const HttpRequest& request, const std::string& name) {
    const auto which = static_cast<Answer>(route);
    if (which == Answer::submit) return submit(request);
    if (which == Answer::list) return list();
    if (which == Answer::history) return history(request);
    const auto id = scheduler_.queue().find(name);
    if (!id) return http_error(id.error());
    const JobRecord& job = scheduler_.queue().jobs().at(*id);
    if (which == Answer::show) return show(job);
    if (which == Answer::cancel) return cancel(job, request);
    return explain(job);
}

HttpResponse QueueApi::submit(const HttpRequest& request) {
    const auto object = request_object(request);
    if (!object) return http_error(object.error());
    JsonReader reader(*object, "");
    const json::array& list = reader.array("jobs");
    if (list.empty() || list.size() > kJobsMax) reader.reject("jobs", "must have 1 to 1000 jobs");
    if (auto finished = reader.finish(); !finished) return http_error(finished.error());
    std::vector<Submission> jobs;
    for (std::size_t i = 0; i < list.size(); ++i) {
        const std::string where = "jobs[" + std::to_string(i) + "]";
        if (!list[i].is_object()) return http_error(Error{ErrorCode::invalid_argument, where + " is not an object"});
        auto job = read_submission(list[i].get_object(), where);
        if (!job) return http_error(job.error());
        if (request.peer) job->user = RunAs{request.peer->uid, request.peer->gid};
        if (!request.peer && ::geteuid() == 0) {
            return http_error(Error{ErrorCode::permission_denied,
                                    "jobs run as the user who submits them, and over TCP there is none: submit on the "
                                    "Unix socket, or run larder-allocator as the user all jobs are to run as"});
        }
        jobs.push_back(std::move(*job));
    }
    const auto ids = scheduler_.submit(jobs, now());
    if (!ids) return http_error(ids.error());
    json::array submitted;
    for (const JobId id : *ids) {
        submitted.push_back(json::object{{"id", id}, {"name", scheduler_.queue().jobs().at(id).asked.name}});
    }
    return json_response({{"jobs", std::move(submitted)}});
}

HttpResponse QueueApi::list() const {
    json::array jobs;
    for (const JobId id : scheduler_.queue().active()) {
        json::object row = row_of(scheduler_.queue().jobs().at(id));
        jobs.push_back(std::move(row));
    }
    json::array doomed;
    for (const DoomedCells& cells : scheduler_.options().placer->doomed_cells()) {
        doomed.push_back(json::object{
            {"tenant", cells.tenant}, {"hierarchy", cells.hierarchy}, {"level", cells.level}, {"count", cells.count}});
    }
    return json_response({{"policy", scheduler_.options().policy->name()},
                          {"jobs", std::move(jobs)},
                          {"doomed_cells", std::move(doomed)}});
}

HttpResponse QueueApi::show(const JobRecord& job) const {
    json::object object = to_json(job);
    if (job.attempt > 0) object["output"] = scheduler_.output_of(job);
    return json_response(object);
}

HttpResponse QueueApi::cancel(const JobRecord& job, const HttpRequest& request) {
    const std::string by = request.authenticated_as.empty() ? "somebody" : request.authenticated_as;
    return done_response(scheduler_.cancel(job.id, by, now()));
}

HttpResponse QueueApi::explain(const JobRecord& job) const {
    const Why why = scheduler_.why(job, now());
    return json_response({{"id", job.id},
                          {"name", job.asked.name},
                          {"state", name(job.phase)},
                          {"binding", why.binding},
                          {"why", why.text}});
}

HttpResponse QueueApi::history(const HttpRequest& request) const {
    const auto limit = limit_of(request);
    if (!limit) return http_error(limit.error());
    std::vector<const JobRecord*> ended;
    for (const auto& [id, job] : scheduler_.queue().jobs()) {
        if (has_ended(job.phase)) ended.push_back(&job);
    }
    std::ranges::stable_sort(ended, std::ranges::greater{}, &JobRecord::ended_s);
    if (ended.size() > *limit) ended.resize(*limit);
    json::array jobs;
    for (const JobRecord* job : ended) jobs.push_back(row_of(*job));
    return json_response({{"jobs", std::move(jobs)}});
}

}  // namespace larder::scheduler
