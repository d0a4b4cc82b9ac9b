#include "scheduler/engines/agent/agent_api.h"

#include <boost/json.hpp>

#include <array>
#include <utility>

#include "base/server/json_http.h"
#include "base/server/logging.h"
#include "scheduler/engines/agent/agent_json.h"
#include "scheduler/live/query_number.h"

namespace larder::scheduler {
namespace json = boost::json;
namespace {

constexpr allocator::Roles kAgents =
    static_cast<allocator::Roles>(allocator::Role::agent) | static_cast<allocator::Roles>(allocator::Role::operator_);
constexpr std::array kRoutes{
    allocator::Extension::Route{"POST", "/v1/engine/attach", "", kAgents},
    allocator::Extension::Route{"GET", "/v1/engine/actions", "session after wait_s", kAgents},
    allocator::Extension::Route{"POST", "/v1/engine/events", "", kAgents},
};
enum class Answer : std::uint8_t { attach, actions, events };

constexpr std::int64_t kSecond_ns = 1'000'000'000;
constexpr std::uint64_t kWaitMost_s = 60;
// An agent polls all the time, so one that is silent for longer has gone.
constexpr std::int64_t kSilence_ns = 30 * kSecond_ns;

std::shared_ptr<bool> watch_client(const HttpRequest& request) {
    auto gone = std::make_shared<bool>(false);
    if (request.on_gone) request.on_gone([gone] { *gone = true; });
    return gone;
}

}  // namespace

std::span<const allocator::Extension::Route> AgentApi::routes() const {
    return kRoutes;
}

void AgentApi::answer(std::size_t route, const HttpRequest& request, const std::string&, const HttpRespond& respond) {
    switch (static_cast<Answer>(route)) {
        case Answer::attach: return attach(request, respond);
        case Answer::actions: return poll_actions(request, respond);
        case Answer::events: return report(request, respond);
    }
}

void AgentApi::attach(const HttpRequest& request, const HttpRespond& respond) {
    const auto object = request_object(request);
    if (!object) return respond(http_error(object.error()));
    const auto state = read_agent_state(*object);
    if (!state) return respond(http_error(state.error()));
    // Two agents that took over from each other by turns would each lose the other's attempts.
    if (!engine_.agent().empty() && engine_.agent() != state->agent && !agent_is_silent()) {
        return respond(http_error(Error{
            ErrorCode::unavailable,
            "agent " + engine_.agent() + " is attached: another takes over once that one has been silent for 30 s"}));
    }
    const auto session = engine_.attach(*state);
    if (!session) return respond(http_error(session.error()));
    heard_ns_ = clock_.now_ns();
    log_info("an agent of the cluster manager is attached",
             {{"agent", state->agent}, {"nodes", state->nodes.size()}, {"attempts", state->attempts.size()}});
    answer_when_recorded(json_response({{"session", *session}, {"queue", engine_.queue()}}), request, respond);
}

void AgentApi::poll_actions(const HttpRequest& request, const HttpRespond& respond) {
    const auto after = query_number(request, "after", 0);
    if (!after) return respond(http_error(after.error()));
    const auto wait_s = query_number(request, "wait_s", 0, 0, kWaitMost_s);
    if (!wait_s) return respond(http_error(wait_s.error()));
    const auto session = request.query.find("session");
    if (session == request.query.end()) {
        return respond(http_error(Error{ErrorCode::invalid_argument, "query: session is missing: attach first"}));
    }
    WaitingPoll poll{.session = session->second,
                     .after = *after,
                     .until_ns = clock_.now_ns() + static_cast<std::int64_t>(*wait_s) * kSecond_ns,
                     .respond = respond,
                     .gone = std::make_shared<bool>(false)};
    if (try_answer(poll)) return;
    poll.gone = watch_client(request);
    polls_.push_back(std::move(poll));
}

bool AgentApi::try_answer(const WaitingPoll& poll) {
    if (*poll.gone) return true;
    const auto actions = engine_.actions(poll.session, poll.after);
    if (!actions) {
        poll.respond(http_error(actions.error()));
        return true;
    }
    heard_ns_ = clock_.now_ns();
    if (actions->empty() && clock_.now_ns() < poll.until_ns) return false;
    json::array list;
    for (const AgentAction& action : *actions) list.push_back(to_json(action));
    poll.respond(json_response({{"actions", std::move(list)}}));
    return true;
}

void AgentApi::report(const HttpRequest& request, const HttpRespond& respond) {
    const auto object = request_object(request);
    if (!object) return respond(http_error(object.error()));
    auto report = read_agent_report(*object);
    if (!report) return respond(http_error(report.error()));
    const auto taken = engine_.report(report->session, report->number, std::move(report->events));
    if (!taken) return respond(http_error(taken.error()));
    heard_ns_ = clock_.now_ns();
    answer_when_recorded(json_response({}), request, respond);
}

bool AgentApi::agent_is_silent() const {
    return clock_.now_ns() - heard_ns_ > kSilence_ns;
}

void AgentApi::answer_when_recorded(HttpResponse answer, const HttpRequest& request, const HttpRespond& respond) {
    if (engine_.is_recorded(engine_.taken())) return respond(std::move(answer));
    reports_.push_back(
        {.events = engine_.taken(), .answer = std::move(answer), .respond = respond, .gone = watch_client(request)});
}

void AgentApi::tick() {
    engine_.set_silent(agent_is_silent());
    std::erase_if(polls_, [this](const WaitingPoll& poll) { return try_answer(poll); });
    std::erase_if(reports_, [this](WaitingReport& report) {
        if (*report.gone) return true;
        if (!engine_.is_recorded(report.events)) return false;
        report.respond(std::move(report.answer));
        return true;
    });
}

}  // namespace larder::scheduler
