#include "scheduler/live/queue_api.h"

#include <boost/json.hpp>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <limits>
#include <map>
#include <utility>

#include "allocator/service/access.h"
#include "base/file.h"
#include "base/server/json_http.h"
#include "base/server/json_reader.h"
#include "scheduler/live/json.h"
#include "scheduler/live/query_number.h"

namespace larder::scheduler {
namespace json = boost::json;
namespace {

using allocator::EventKind;
using allocator::Role;
using allocator::Roles;

constexpr Roles kSubmitters =
    static_cast<Roles>(Role::submitter) | static_cast<Roles>(Role::agent) | static_cast<Roles>(Role::operator_);
constexpr Roles kReaders =
    kSubmitters | static_cast<Roles>(Role::viewer) | static_cast<Roles>(Role::job) | static_cast<Roles>(Role::node);

constexpr Roles kOperators = static_cast<Roles>(Role::operator_);

constexpr std::size_t kJobsMax = 1000;  // of one submission
constexpr std::size_t kHistoryShown = 100;

constexpr std::uint64_t kOutputBytesMax = 512u << 10;  // of one answer

enum class Answer : std::uint8_t { submit, list, show, cancel, why, output, history, nodes, tenants, drain, undrain };

constexpr std::array kRoutes{
    allocator::Extension::Route{"POST", "/v1/queue", "", kSubmitters},
    allocator::Extension::Route{"GET", "/v1/queue", "", kReaders},
    allocator::Extension::Route{"GET", "/v1/queue/{name}", "", kReaders},
    allocator::Extension::Route{"DELETE", "/v1/queue/{name}", "", kSubmitters},
    allocator::Extension::Route{"GET", "/v1/queue/{name}/why", "", kReaders},
    allocator::Extension::Route{"GET", "/v1/queue/{name}/output", "attempt offset", kSubmitters},
    allocator::Extension::Route{"GET", "/v1/history", "limit", kReaders},
    allocator::Extension::Route{"GET", "/v1/gpu-nodes", "", kReaders},
    allocator::Extension::Route{"GET", "/v1/tenants", "", kReaders},
    allocator::Extension::Route{"PUT", "/v1/gpu-nodes/{name}/drain", "", kOperators},
    allocator::Extension::Route{"DELETE", "/v1/gpu-nodes/{name}/drain", "", kOperators},
};

constexpr std::array kEventKinds{
    std::pair{QueueNote::Kind::submitted, EventKind::job_submitted},
    std::pair{QueueNote::Kind::started, EventKind::job_started},
    std::pair{QueueNote::Kind::stopped, EventKind::job_stopped},
    std::pair{QueueNote::Kind::ended, EventKind::job_ended},
};

// Returns at most kOutputBytesMax of a file from `offset` on; nothing if the file does not exist.
Result<std::string> read_part(const std::string& path, std::uint64_t offset) {
    // A job may have replaced the file by a FIFO: O_NONBLOCK keeps open() from waiting for a writer.
    const auto file = open_file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (!file && file.error().code == ErrorCode::not_found) return std::string();
    if (!file) return std::unexpected(file.error());
    std::string part(kOutputBytesMax, '\0');
    const ssize_t bytes_read = ::pread(file->get(), part.data(), part.size(), static_cast<off_t>(offset));
    if (bytes_read < 0) return fail_errno(errno, "read " + path);
    part.resize(static_cast<std::size_t>(bytes_read));
    return part;
}

// Returns the job with its submitter, named as /v1/access names that client. Jobs of old versions may have none.
json::object with_submitter(const JobRecord& job) {
    json::object object = to_json(job);
    const std::string submitter =
        job.asked.user ? allocator::local_user_name(job.asked.user->uid) : job.asked.submitter;
    if (!submitter.empty()) object["submitter"] = submitter;
    return object;
}

json::object to_json(const NodeDrain& drain) {
    return {{"by", drain.by}, {"since_unix_s", drain.since_s}};
}

// Counts the jobs that are with the engine by the nodes and the type of their GPUs.
using NodeAndType = std::pair<std::string_view, std::string_view>;
std::map<NodeAndType, std::uint64_t> jobs_by_node(const JobQueue& queue) {
    std::map<NodeAndType, std::uint64_t> counts;
    for (const JobRecord* const job : queue.holders().records()) {
        if (!is_with_engine(job->phase) || !job->held) continue;
        for (const NamedGpus& share : job->in_use().gpus) ++counts[{share.node, job->held->gpu_type}];
    }
    return counts;
}

std::uint64_t jobs_on(const JobQueue& queue, std::string_view node) {
    std::uint64_t count = 0;
    for (const auto& [place, jobs] : jobs_by_node(queue)) count += place.first == node ? jobs : 0;
    return count;
}

std::string author_of(const HttpRequest& request) {
    return request.authenticated_as.empty() ? "somebody" : request.authenticated_as;
}

// The lists leave the log out; the answer for a single job has it.
json::object row_of(const JobRecord& job) {
    json::object row = with_submitter(job);
    row.erase("log");
    return row;
}

}  // namespace

QueueApi::QueueApi(Parts parts, const allocator::ExtensionContext& place)
    : clock_(place.clock),
      unix_offset_ns_(unix_time_ns() - place.clock.now_ns()),
      events_(place.events),
      store_(std::move(parts.store)),
      engine_(std::move(parts.engine)),
      engine_api_(std::move(parts.engine_api)),
      routes_(kRoutes.begin(), kRoutes.end()),
      scheduler_(std::move(parts.options), *engine_, place.cluster,
                 [this, on_thread = place.on_thread](LiveRecord change, LiveScheduler::Done saved) {
                     store_->save(std::move(change), on_thread(std::move(saved)));
                 }) {
    if (engine_api_) routes_.insert(routes_.end(), engine_api_->routes().begin(), engine_api_->routes().end());
    scheduler_.restore(store_->found(), now());
}

Moment QueueApi::now() const {
    const std::int64_t steady_ns = clock_.now_ns();
    return {.unix_s = static_cast<double>(steady_ns + unix_offset_ns_) * 1e-9, .steady_ns = steady_ns};
}

std::span<const allocator::Extension::Route> QueueApi::routes() const {
    return routes_;
}

void QueueApi::tick() {
    scheduler_.tick(now());
    if (engine_api_) engine_api_->tick();
    for (QueueNote& note : scheduler_.take_notes()) {
        const auto kind = std::ranges::find(kEventKinds, note.kind, &decltype(kEventKinds)::value_type::first);
        events_.add(kind->second, std::move(note.job), std::move(note.text));
    }
}

std::string QueueApi::metrics_text() {
    return queue_metrics(scheduler_);
}

void QueueApi::answer(std::size_t route, const HttpRequest& request, const std::string& name,
                      const HttpRespond& respond) {
    if (route >= kRoutes.size()) return engine_api_->answer(route - kRoutes.size(), request, name, respond);
    const auto which = static_cast<Answer>(route);
    if (which == Answer::submit) return submit(request, respond);
    if (which == Answer::list) return respond(list());
    if (which == Answer::history) return respond(history(request));
    if (which == Answer::nodes) return respond(nodes());
    if (which == Answer::tenants) return respond(tenants());
    if (which == Answer::drain) return drain(name, request, respond);
    if (which == Answer::undrain) return undrain(name, request, respond);
    const auto id = scheduler_.queue().find(name);
    if (!id) return respond(http_error(id.error()));
    const JobRecord& job = scheduler_.queue().jobs().at(*id);
    // Jobs with parameters are made for the cluster manager, whose agent may have another token than when they were
    // submitted.
    const bool is_from_agent =
        which == Answer::cancel && request.is_agent && engine_api_ != nullptr && !job.asked.engine_parameters.empty();
    if ((which == Answer::cancel || which == Answer::output) && !is_from_agent && !may_manage(job, request)) {
        return respond(
            http_error(Error{ErrorCode::permission_denied, "job " + title(job) +
                                                               " belongs to another user or token: only its "
                                                               "submitter, root, the allocator's user and operators "
                                                               "may cancel it or read its output"}));
    }
    if (which == Answer::cancel) return cancel(job, request, respond);
    if (which == Answer::output) return respond(output(job, request));
    respond(which == Answer::show ? show(job) : explain(job));
}

Submitter QueueApi::submitter_of(const HttpRequest& request) const {
    // Without a cluster manager, an agent's token is one like others.
    const bool is_agent = request.is_agent && scheduler_.options().engine_takes_parameters;
    Submitter by{.uid = {}, .name = {}, .is_operator = request.is_operator, .is_agent = is_agent};
    if (request.peer) {
        by.uid = request.peer->uid;
    } else {
        by.name = request.authenticated_as;
    }
    return by;
}

// A job that was submitted over TCP belongs to its token or certificate.
bool QueueApi::may_manage(const JobRecord& job, const HttpRequest& request) {
    if (request.is_operator) return true;
    if (!request.peer) {
        return !job.asked.user && !job.asked.submitter.empty() && job.asked.submitter == request.authenticated_as;
    }
    return job.asked.user && job.asked.user->uid == request.peer->uid;
}

Result<std::vector<Submission>> QueueApi::read_submissions(const HttpRequest& request) const {
    const auto object = request_object(request);
    if (!object) return std::unexpected(object.error());
    JsonReader reader(*object, "");
    const json::array& list = reader.array("jobs");
    if (list.empty() || list.size() > kJobsMax) reader.reject("jobs", "must have 1 to 1000 jobs");
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    std::vector<Submission> jobs;
    for (std::size_t i = 0; i < list.size(); ++i) {
        const std::string where = "jobs[" + std::to_string(i) + "]";
        if (!list[i].is_object()) return fail(ErrorCode::invalid_argument, where + " is not an object");
        auto job = read_submission(list[i].get_object(), where);
        if (!job) return std::unexpected(job.error());
        if (request.peer) job->user = RunAs{request.peer->uid, request.peer->gid};
        if (!request.peer) job->submitter = request.authenticated_as;
        // A cluster manager has its own rules about users.
        const bool runs_here = engine_api_ == nullptr;
        if (!request.peer && runs_here && ::geteuid() == 0) {
            return fail(ErrorCode::permission_denied,
                        "jobs run as the user who submits them, and over TCP that user is unknown: submit on the Unix "
                        "socket, or run larder-allocator as the user for all jobs");
        }
        jobs.push_back(std::move(*job));
    }
    return jobs;
}

void QueueApi::submit(const HttpRequest& request, const HttpRespond& respond) {
    const auto jobs = read_submissions(request);
    if (!jobs) return respond(http_error(jobs.error()));
    scheduler_.submit(*jobs, submitter_of(request), now(), [this, respond](const Result<std::vector<JobId>>& ids) {
        if (!ids) return respond(http_error(ids.error()));
        json::array submitted;
        for (const JobId id : *ids) {
            submitted.push_back(json::object{{"id", id}, {"name", scheduler_.queue().jobs().at(id).asked.name}});
        }
        respond(json_response({{"jobs", std::move(submitted)}}));
    });
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
                          {"queue", store_->identity()},
                          {"jobs", std::move(jobs)},
                          {"doomed_cells", std::move(doomed)}});
}

HttpResponse QueueApi::nodes() const {
    const LiveOptions& options = scheduler_.options();
    const auto jobs = jobs_by_node(scheduler_.queue());
    json::array nodes;
    for (std::uint32_t n = 0; n < options.cluster.nodes.size(); ++n) {
        const GpuNode& node = options.cluster.nodes[n];
        const auto told = scheduler_.inventory().find(node.name);
        const bool is_told = told != scheduler_.inventory().end();
        // Nodes that were removed keep their place in the list for a while.
        if (options.cluster.is_open && (!is_told || (node.gpus == 0 && told->second.gpus > 0))) continue;
        json::object labels;
        if (is_told) {
            for (const auto& [key, label] : told->second.labels) labels[key] = label;
        }
        const std::string& gpu_type = options.cluster.gpu_types[node.gpu_type];
        const auto running = jobs.find({node.name, gpu_type});
        json::object row{{"node", node.name},          {"gpus", node.gpus},
                         {"gpu_type", gpu_type},       {"free_gpus", std::popcount(options.placer->free_on(n))},
                         {"is_usable", node.usable},   {"jobs", running == jobs.end() ? 0 : running->second},
                         {"labels", std::move(labels)}};
        const auto drained = scheduler_.drains().find(node.name);
        if (drained != scheduler_.drains().end()) row["drained"] = to_json(drained->second);
        nodes.push_back(std::move(row));
    }
    return json_response({{"nodes", std::move(nodes)}});
}

void QueueApi::drain(const std::string& node, const HttpRequest& request, const HttpRespond& respond) {
    const bool is_new = !scheduler_.drains().contains(node);
    const std::string by = author_of(request);
    scheduler_.drain(node, by, now(), [this, node, by, is_new, respond](const Result<void>& done) {
        if (!done) return respond(http_error(done.error()));
        if (is_new) events_.add(EventKind::node_drained, node, "takes no further job: drained by " + by);
        const auto drained = scheduler_.drains().find(node);
        // It may have been taken back since.
        const NodeDrain drain = drained == scheduler_.drains().end() ? NodeDrain{.by = by} : drained->second;
        respond(
            json_response({{"node", node}, {"jobs", jobs_on(scheduler_.queue(), node)}, {"drained", to_json(drain)}}));
    });
}

void QueueApi::undrain(const std::string& node, const HttpRequest& request, const HttpRespond& respond) {
    const std::string by = author_of(request);
    scheduler_.undrain(node, by, [this, node, by, respond](const Result<void>& done) {
        if (done) events_.add(EventKind::node_undrained, node, "takes jobs again: taken back by " + by);
        respond(done_response(done));
    });
}

HttpResponse QueueApi::tenants() const {
    const std::vector<Tenant>& all = scheduler_.options().tenants;
    struct Use {
        std::uint64_t gpus = 0;
        std::uint64_t opportunistic_gpus = 0;
        std::uint64_t running = 0;
        std::uint64_t waiting = 0;
    };
    std::map<std::string, Use> uses;
    for (const JobId id : scheduler_.queue().active()) {
        const JobRecord& job = scheduler_.queue().jobs().at(id);
        Use& use = uses[job.asked.tenant];
        ++(job.held ? use.running : use.waiting);
        if (!job.held) continue;
        use.gpus += job.in_use().count;
        if (job.held->opportunistic) use.opportunistic_gpus += job.in_use().count;
    }
    std::uint64_t usable_gpus = 0;
    for (const GpuNode& node : scheduler_.options().cluster.nodes) usable_gpus += node.usable ? node.gpus : 0;
    std::map<std::uint32_t, double> weights;  // of all tenants below one, by its index
    for (const Tenant& tenant : all) weights[tenant.parent] += tenant.weight;
    json::array rows;
    for (const Tenant& tenant : all) {
        double share = static_cast<double>(usable_gpus);
        for (const Tenant* at = &tenant;; at = &all[at->parent]) {
            share *= at->weight / weights[at->parent];
            if (at->parent == kNoTenant) break;
        }
        const Use& use = uses[tenant.name];
        const double above_share = std::max(0.0, static_cast<double>(use.gpus) - share);
        json::object row{{"name", tenant.name},
                         {"weight", tenant.weight},
                         {"jobs_running", use.running},
                         {"jobs_waiting", use.waiting},
                         {"used_gpus", use.gpus},
                         {"share_gpus", share},
                         {"borrowed_gpus", std::max(above_share, static_cast<double>(use.opportunistic_gpus))}};
        if (tenant.parent != kNoTenant) row["parent"] = all[tenant.parent].name;
        if (tenant.gpu_quota != kAllGpus) row["gpu_quota"] = tenant.gpu_quota;
        rows.push_back(std::move(row));
    }
    return json_response({{"gpus", usable_gpus}, {"tenants", std::move(rows)}});
}

HttpResponse QueueApi::show(const JobRecord& job) const {
    json::object object = with_submitter(job);
    if (job.attempt > 0) object["output"] = scheduler_.output_of(job);
    return json_response(object);
}

void QueueApi::cancel(const JobRecord& job, const HttpRequest& request, const HttpRespond& respond) {
    scheduler_.cancel(job.id, author_of(request), now(),
                      [respond](const Result<void>& done) { respond(done_response(done)); });
}

HttpResponse QueueApi::explain(const JobRecord& job) const {
    const Why why = scheduler_.why(job, now());
    json::object answer{{"id", job.id},
                        {"name", job.asked.name},
                        {"state", name(job.phase)},
                        {"binding", why.binding},
                        {"why", why.text}};
    if (why.place) answer["place"] = *why.place;
    if (why.starts_unix_s) answer["starts_unix_s"] = *why.starts_unix_s;
    return json_response(answer);
}

HttpResponse QueueApi::output(const JobRecord& job, const HttpRequest& request) const {
    const auto attempt = query_number(request, "attempt", job.attempt);
    if (!attempt) return http_error(attempt.error());
    const auto offset = query_number(request, "offset", 0);
    if (!offset) return http_error(offset.error());
    if (*attempt > job.attempt || *offset > std::numeric_limits<std::int64_t>::max()) {
        return http_error(Error{
            ErrorCode::not_found,
            "job " + title(job) + " has no attempt " + std::to_string(*attempt) + ", or less output than that offset"});
    }
    const std::string path = engine_->output_of(job.id, static_cast<std::uint32_t>(*attempt));
    const std::string elsewhere = "the output of job " + title(job) + " is not kept here, but ";
    if (path.find("://") != std::string::npos) return http_error(Error{ErrorCode::not_found, elsewhere + "at " + path});
    if (path.empty() && *attempt > 0) {
        return http_error(Error{ErrorCode::not_found, elsewhere + "by its cluster manager"});
    }
    auto part = path.empty() ? Result<std::string>(std::string()) : read_part(path, *offset);
    if (!part) return http_error(part.error());
    return {.content_type = "application/octet-stream", .body = std::move(*part)};
}

void QueueApi::put_status(json::object& status) const {
    std::size_t with_engine = 0;
    const JobQueue& queue = scheduler_.queue();
    for (const JobId id : queue.holders()) with_engine += is_with_engine(queue.jobs().at(id).phase) ? 1 : 0;
    status["policy"] = scheduler_.options().policy->name();
    status["jobs_waiting"] = queue.active().size() - with_engine;
    status["jobs_running"] = with_engine;
    if (const std::string warning = engine_->warning(); !warning.empty()) status["warning"] = warning;
}

HttpResponse QueueApi::history(const HttpRequest& request) const {
    const auto limit = query_number(request, "limit", kHistoryShown, 1);
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
