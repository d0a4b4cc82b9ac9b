#include "scheduler/engines/agent/agent_engine.h"

#include <algorithm>
#include <set>
#include <utility>

namespace larder::scheduler {
namespace {

using Kind = EngineEvent::Kind;

constexpr const char* kNoAgent = "no agent of the cluster manager is connected";

bool is_end(Kind kind) {
    return kind == Kind::ended || kind == Kind::lost || kind == Kind::rejected || kind == Kind::evicted;
}

// True if the event tells the number of a resize.
bool tells_resize(Kind kind) {
    return kind == Kind::started || kind == Kind::resized || kind == Kind::resize_refused;
}

EngineEvent end_of(Kind kind, JobId job, std::uint32_t attempt, const char* message) {
    return {.kind = kind, .job = job, .attempt = attempt, .was_stopping = kind == Kind::ended, .message = message};
}

// Returns the state that a node's event tells; nullopt: none.
std::optional<Kind> told_state(Kind kind) {
    switch (kind) {
        case Kind::node_added:
        case Kind::node_back: return Kind::node_back;
        case Kind::node_drained:
        case Kind::node_lost: return kind;
        default: return std::nullopt;
    }
}

std::string replaced(std::string text, std::string_view what, const std::string& by) {
    if (const auto at = text.find(what); at != std::string::npos) text.replace(at, what.size(), by);
    return text;
}

}  // namespace

// --- the scheduler's side

void AgentEngine::start(const EngineJob& job) {
    attempts_[job.job] = {.job = job};
    if (sessions_ > 0) return add_start(job);
    add_event({.kind = Kind::pending, .job = job.job, .attempt = job.attempt, .message = kNoAgent});
}

void AgentEngine::adopt(const EngineJob& job) {
    // The scheduler resumes by adopting what a former process had started. Later it adopts only what it stops before it
    // has started it.
    attempts_[job.job] = {.job = job, .was_sent = !is_resumed_, .may_have_begun = !is_resumed_};
}

void AgentEngine::stop(JobId job, std::uint32_t attempt) {
    const auto at = attempts_.find(job);
    if (at == attempts_.end() || at->second.job.attempt != attempt) return;
    at->second.is_stopping = true;
    if (!at->second.was_sent) return take_attempt_event(end_of(Kind::ended, job, attempt, "it never began"));
    if (sessions_ > 0) add_stop(options_.queue, job, attempt);
}

void AgentEngine::stop_orphan(const AttemptName& orphan) {
    if (!told_.contains(orphan)) return;
    add_stop(orphan.queue.empty() ? options_.queue : orphan.queue, orphan.job, orphan.attempt);
}

void AgentEngine::resize(const EngineJob& job) {
    const auto at = attempts_.find(job.job);
    if (at == attempts_.end() || at->second.job.attempt != job.attempt) return;
    at->second.job = job;
    if (sessions_ > 0) add_resize(job);
}

std::vector<EngineEvent> AgentEngine::poll() {
    return std::exchange(events_, {});
}

void AgentEngine::recorded(std::uint64_t events) {
    recorded_ = std::max(recorded_, events);
    is_resumed_ = true;
}

std::string AgentEngine::output_of(JobId job, std::uint32_t attempt) const {
    if (attempt == 0) return "";
    return replaced(replaced(options_.output_url, "{job}", std::to_string(job)), "{attempt}", std::to_string(attempt));
}

Result<DrainCommands> AgentEngine::drain_commands(const std::string& node) const {
    if (sessions_ == 0) {
        return fail(ErrorCode::unavailable,
                    std::string(kNoAgent) + ", which tells whether Larder drains nodes: try again once it is");
    }
    return DrainCommands{.drain = replaced(drain_commands_.drain, "{node}", node),
                         .undrain = replaced(drain_commands_.undrain, "{node}", node)};
}

std::string AgentEngine::warning() const {
    if (sessions_ == 0) return kNoAgent;
    if (is_silent_) return "agent " + agent_ + " of the cluster manager has not been heard of lately";
    if (unknown_nodes_.empty()) return "";
    std::string names;
    for (const std::string& node : unknown_nodes_) names += (names.empty() ? "" : ", ") + node;
    return "the cluster manager has nodes that scheduler.node lacks: " + names;
}

// --- the agent's side

Result<void> AgentEngine::check_session(const std::string& session) const {
    if (sessions_ > 0 && session == options_.instance + "-" + std::to_string(sessions_)) return {};
    return fail(ErrorCode::changed, "session \"" + session + "\" has ended: attach again");
}

AttemptName AgentEngine::name_of(const EngineEvent& event) const {
    return {.queue = event.queue == options_.queue ? "" : event.queue, .job = event.job, .attempt = event.attempt};
}

Result<std::string> AgentEngine::attach(const AgentState& state) {
    if (!is_resumed_) return fail(ErrorCode::unavailable, "the scheduler is still resuming its jobs: try again");
    if (auto fits = check_nodes(state.nodes); !fits) return std::unexpected(fits.error());
    for (std::size_t i = 0; i < state.nodes.size() && options_.agent_has_nodes; ++i) {
        if (state.nodes[i].inventory) continue;
        return fail(ErrorCode::invalid_argument, "nodes[" + std::to_string(i) +
                                                     "]: gpus is missing: with scheduler.nodes = \"agent\", the agent "
                                                     "names the nodes' GPUs");
    }
    for (std::size_t i = 0; i < state.attempts.size(); ++i) {
        const EngineEvent& event = state.attempts[i];
        const auto wanted = attempts_.find(event.job);
        const bool is_wanted = event.queue == options_.queue && wanted != attempts_.end() &&
                               wanted->second.job.attempt == event.attempt && tells_resize(event.kind);
        if (!is_wanted || event.resize <= wanted->second.job.resize) continue;
        return fail(ErrorCode::invalid_argument, "attempts[" + std::to_string(i) + "]: there is no resize " +
                                                     std::to_string(event.resize) + " of this attempt");
    }
    agent_ = state.agent;
    agent_resizes_ = state.resizes;
    drain_commands_ = state.drain_commands;
    ++sessions_;
    actions_.clear();
    last_action_ = 0;
    last_report_ = 0;
    is_silent_ = false;
    told_.clear();
    set_nodes(state);
    std::set<std::pair<JobId, std::uint32_t>> had;
    for (const EngineEvent& event : state.attempts) {
        if (!is_end(event.kind)) told_.insert(name_of(event));
        const bool is_ours = event.queue == options_.queue;
        if (is_ours) had.emplace(event.job, event.attempt);
        const auto wanted = attempts_.find(event.job);
        const bool is_wanted = is_ours && wanted != attempts_.end() && wanted->second.job.attempt == event.attempt;
        if (!is_wanted) continue;
        const Attempt& attempt = wanted->second;
        if (attempt.is_stopping && !is_end(event.kind)) add_stop(options_.queue, event.job, event.attempt);
        // The agent tells the last resize that it has carried out or refused.
        const bool is_behind = tells_resize(event.kind) && event.resize < attempt.job.resize;
        if (is_behind && !attempt.is_stopping) add_resize(attempt.job);
        take_attempt_event(event);
    }
    std::vector<EngineEvent> missing;
    std::vector<EngineJob> to_start;
    for (const auto& [id, attempt] : attempts_) {
        if (had.contains({id, attempt.job.attempt})) continue;
        if (!attempt.may_have_begun && !attempt.is_stopping) {
            to_start.push_back(attempt.job);
        } else {
            missing.push_back(end_of(attempt.is_stopping ? Kind::ended : Kind::lost, id, attempt.job.attempt,
                                     "the cluster manager no longer has it"));
        }
    }
    for (EngineJob& job : to_start) add_start(std::move(job));
    for (EngineEvent& event : missing) take_attempt_event(std::move(event));
    return options_.instance + "-" + std::to_string(sessions_);
}

void AgentEngine::set_nodes(const AgentState& state) {
    unknown_nodes_.clear();
    std::set<std::string_view> given;
    for (const EngineEvent& event : state.nodes) {
        const bool is_known = nodes_.contains(event.node);
        if (!is_known && !options_.agent_has_nodes) unknown_nodes_.push_back(event.node);
        given.insert(event.node);
        take_node_event(event);
    }
    std::vector<std::string> missing;
    for (const auto& [node, _] : nodes_) {
        if (!given.contains(node)) missing.push_back(node);
    }
    for (const std::string& node : missing) {
        // One list may be incomplete, so it ends no attempt.
        const bool is_gone = options_.agent_has_nodes && nodes_.at(node).was_left_out && !is_in_use(node);
        take_node_event({.kind = is_gone ? Kind::node_removed : Kind::node_lost,
                         .message = "the cluster manager does not have it",
                         .node = node});
        if (!is_gone) nodes_.at(node).was_left_out = true;
    }
}

bool AgentEngine::is_in_use(const std::string& node) const {
    return std::ranges::any_of(attempts_, [&](const auto& entry) {
        const std::vector<NamedGpus>& gpus = entry.second.job.gpus;
        return std::ranges::find(gpus, node, &NamedGpus::node) != gpus.end();
    });
}

Result<void> AgentEngine::check_nodes(const std::vector<EngineEvent>& events) const {
    if (!options_.agent_has_nodes) return {};
    std::set<std::string_view> nodes;
    std::set<std::string_view> types;
    for (const EngineEvent& event : events) {
        if (!event.inventory) continue;
        if (!nodes_.contains(event.node) && event.inventory->gpus > 0) nodes.insert(event.node);
        if (!gpu_types_.contains(event.inventory->gpu_type)) types.insert(event.inventory->gpu_type);
    }
    if (!nodes.empty() && nodes_.size() + nodes.size() > kNodesMax) {
        return fail(ErrorCode::invalid_argument, "node \"" + std::string(*nodes.begin()) + "\" is one of more than " +
                                                     std::to_string(kNodesMax) + " nodes: remove some first");
    }
    if (!types.empty() && gpu_types_.size() + types.size() > kGpuTypesMax) {
        return fail(ErrorCode::invalid_argument, "gpu_type \"" + std::string(*types.begin()) +
                                                     "\" is one of more than " + std::to_string(kGpuTypesMax) +
                                                     " types of GPUs since the allocator was started");
    }
    return {};
}

// Passes on what has changed. A node that only the agent knows comes with its first event that has its GPUs.
void AgentEngine::take_node_event(EngineEvent event) {
    if (event.kind == Kind::node_removed && options_.agent_has_nodes) return remove_node(event.node, event.message);
    if (event.kind == Kind::node_removed) event.kind = Kind::node_lost;
    if (!options_.agent_has_nodes) event.inventory.reset();
    auto at = nodes_.find(event.node);
    // A node that never had GPUs is of no use to jobs.
    if (at == nodes_.end() && (!event.inventory || event.inventory->gpus == 0)) return;
    const bool is_new = at == nodes_.end();
    if (is_new) at = nodes_.emplace(event.node, Node{}).first;
    Node& node = at->second;
    node.was_left_out = false;
    if (event.inventory) gpu_types_.insert(event.inventory->gpu_type);
    event.kind = told_state(event.kind).value_or(node.state);
    const bool has_other_gpus = event.inventory && event.inventory != node.inventory;
    if (has_other_gpus) node.inventory = event.inventory;
    if (std::exchange(node.state, event.kind) == event.kind && !has_other_gpus && !is_new) return;
    if (!has_other_gpus) event.inventory.reset();
    add_event(std::move(event));
}

void AgentEngine::remove_node(const std::string& node, const std::string& why) {
    if (nodes_.erase(node) == 0) return;
    add_event({.kind = Kind::node_removed, .message = why, .node = node});
}

Result<std::vector<AgentAction>> AgentEngine::actions(const std::string& session, std::uint64_t after) {
    if (auto current = check_session(session); !current) return std::unexpected(current.error());
    if (after > last_action_) {
        return fail(ErrorCode::invalid_argument, "after: there is no action " + std::to_string(after));
    }
    std::erase_if(actions_, [after](const AgentAction& action) { return action.number <= after; });
    const auto count = static_cast<std::ptrdiff_t>(std::min(actions_.size(), kActionsMax));
    return std::vector(actions_.begin(), actions_.begin() + count);
}

Result<void> AgentEngine::report(const std::string& session, std::uint64_t number, std::vector<EngineEvent> events) {
    if (auto current = check_session(session); !current) return current;
    if (number <= last_report_) return {};
    if (number != last_report_ + 1) {
        return fail(ErrorCode::invalid_argument, "number: report " + std::to_string(last_report_ + 1) +
                                                     " is missing: send it first, or attach again");
    }
    if (auto fits = check_nodes(events); !fits) return fits;
    last_report_ = number;
    for (EngineEvent& event : events) {
        if (event.node.empty()) {
            if (is_end(event.kind)) told_.erase(name_of(event));
            if (event.queue == options_.queue) take_attempt_event(std::move(event));
            continue;
        }
        take_node_event(std::move(event));
    }
    return {};
}

void AgentEngine::add_event(EngineEvent event) {
    ++taken_;
    events_.push_back(std::move(event));
}

void AgentEngine::take_attempt_event(EngineEvent event) {
    const auto at = attempts_.find(event.job);
    if (at == attempts_.end() || at->second.job.attempt != event.attempt) return;
    Attempt& attempt = at->second;
    if (event.kind == Kind::started) attempt.may_have_begun = true;
    if (is_end(event.kind)) attempts_.erase(at);
    add_event(std::move(event));
}

void AgentEngine::add_start(EngineJob job) {
    for (const NamedGpus& share : job.gpus) {
        const auto node = nodes_.find(share.node);
        const bool takes_jobs =
            node == nodes_.end() ? !options_.agent_has_nodes : node->second.state == Kind::node_back;
        if (takes_jobs) continue;
        return take_attempt_event({.kind = Kind::rejected,
                                   .job = job.job,
                                   .attempt = job.attempt,
                                   .message = "node " + share.node + " takes no jobs"});
    }
    actions_.push_back({.number = ++last_action_, .queue = options_.queue, .job = std::move(job)});
}

void AgentEngine::add_resize(EngineJob job) {
    if (!agent_resizes_) {
        return take_attempt_event({.kind = Kind::resize_refused,
                                   .job = job.job,
                                   .attempt = job.attempt,
                                   .resize = job.resize,
                                   .message = "agent " + agent_ + " resizes no jobs"});
    }
    actions_.push_back({.number = ++last_action_, .queue = options_.queue, .job = std::move(job), .is_resize = true});
}

void AgentEngine::add_stop(const std::string& queue, JobId job, std::uint32_t attempt) {
    actions_.push_back(
        {.number = ++last_action_, .queue = queue, .job = std::nullopt, .stop_job = job, .stop_attempt = attempt});
}

}  // namespace larder::scheduler
