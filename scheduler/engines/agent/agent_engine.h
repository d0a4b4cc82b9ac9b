#pragma once

// Runs jobs through a cluster manager that is not ours. An agent, a process beside the cluster manager, attaches to the
// engine, takes its actions and reports events; agent_api.h is how it does that over HTTP. The engine is the pure part:
// it has no clock and does no I/O.
//
// One agent is attached at a time, in a session. A session begins with the agent's full state: each node, and each
// attempt that it has, ended ones included. The engine compares that with what the scheduler wants. So neither side
// needs to remember what it has told the other: after a restart of either, the agent attaches again. Within a session
// each action has a number, and each report has one. An agent that attaches takes over from the one before, whose
// session is refused from then on.
//
// A queue that was lost is made anew, and numbers its jobs from 1 again. So an attempt is named by its queue, job and
// number. The agent tells the queue of each attempt that it has, and attempts of other queues are stopped. One thread.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "scheduler/live/engine.h"

namespace larder::scheduler {

struct AgentAction {
    std::uint64_t number = 0;      // in its session, from 1
    std::string queue;             // whose attempt it is
    std::optional<EngineJob> job;  // set: start this attempt; nullopt: stop the attempt below
    JobId stop_job = 0;
    std::uint32_t stop_attempt = 0;
};

struct AgentState {
    std::string agent;               // its name, for people
    std::vector<EngineEvent> nodes;  // node_back, node_drained or node_lost; a node that is left out is lost
    // The last event of each attempt that the agent has. An attempt that has ended stays in the list until its end was
    // acknowledged.
    std::vector<EngineEvent> attempts;
};

class AgentEngine final : public Engine {
public:
    // `queue` is the identity of the queue whose jobs it runs. `instance` tells this process's sessions from those of
    // other processes. `output_url`: where people find an attempt's output; {job} and {attempt} stand for numbers.
    // Empty: nowhere.
    AgentEngine(std::vector<std::string> nodes, std::string queue, std::string instance, std::string output_url = "");

    void start(const EngineJob& job) override;
    void adopt(const EngineJob& job) override;
    void stop(JobId job, std::uint32_t attempt) override;
    std::vector<EngineEvent> poll() override;
    void recorded(std::uint64_t events) override;
    void forget(JobId) override {}
    std::string output_of(JobId job, std::uint32_t attempt) const override;
    std::string warning() const override;
    bool is_connected() const override { return sessions_ > 0 && !is_silent_; }

    static constexpr std::size_t kActionsMax = 100;
    // Begins a session and returns its name. Actions for the agent follow from its state.
    // unavailable: the scheduler has not resumed its own state yet.
    Result<std::string> attach(const AgentState& state);
    // Forgets the actions up to `after`, which the agent has carried out, and returns the next, at most kActionsMax.
    // changed: another session has begun. invalid_argument: there never was such an action.
    Result<std::vector<AgentAction>> actions(const std::string& session, std::uint64_t after);
    // Takes a report. One that was taken before is ignored.
    // changed: as above. invalid_argument: a report before this one is missing.
    Result<void> report(const std::string& session, std::uint64_t number, std::vector<EngineEvent> events);

    // is_recorded(n) tells if the effects of the first n of all events taken() from agents are on record.
    std::uint64_t taken() const { return taken_; }
    bool is_recorded(std::uint64_t events) const { return recorded_ >= events; }
    const std::string& queue() const { return queue_; }
    const std::string& agent() const { return agent_; }  // empty: none has attached
    // Tells whether the agent was heard of lately, for warning().
    void set_silent(bool is_silent) { is_silent_ = is_silent; }

private:
    struct Attempt {
        EngineJob job;
        bool was_sent = true;  // to an agent, by this process or a former one
        bool may_have_begun = false;
        bool is_stopping = false;
    };

    Result<void> check_session(const std::string& session) const;
    void add_event(EngineEvent event);
    // Handles an event of an attempt; those of attempts that the scheduler does not know are ignored.
    void take_attempt_event(EngineEvent event);
    void set_nodes(const AgentState& state);
    // Adds the action, or rejects the attempt if one of its nodes takes no jobs.
    void add_start(EngineJob job);
    void add_stop(const std::string& queue, JobId job, std::uint32_t attempt);

    std::string queue_;
    std::string instance_;
    std::string output_url_;
    std::map<std::string, EngineEvent::Kind> nodes_;  // the last event of each
    std::vector<std::string> unknown_nodes_;          // that the agent has and the configuration lacks
    std::map<JobId, Attempt> attempts_;               // that the scheduler wants, or waits for
    std::vector<EngineEvent> events_;                 // not polled yet
    std::vector<AgentAction> actions_;                // not acknowledged yet
    std::string agent_;
    std::uint64_t sessions_ = 0;
    std::uint64_t last_action_ = 0;
    std::uint64_t last_report_ = 0;
    std::uint64_t taken_ = 0;
    std::uint64_t recorded_ = 0;
    bool is_resumed_ = false;  // the scheduler has told us all of its attempts
    bool is_silent_ = false;
};

}  // namespace larder::scheduler
