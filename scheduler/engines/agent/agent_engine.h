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
// number. The agent tells the queue of each attempt that it has. list() has the attempts that the agent told when it
// attached, without those that have ended since. Each session makes the list anew. One thread.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "scheduler/live/engine.h"

namespace larder::scheduler {

struct AgentAction {
    std::uint64_t number = 0;      // in its session, from 1
    std::string queue;             // whose attempt it is
    std::optional<EngineJob> job;  // set: start or resize this attempt; nullopt: stop the attempt below
    bool is_resize = false;
    JobId stop_job = 0;
    std::uint32_t stop_attempt = 0;
};

struct AgentState {
    std::string agent;     // its name, for people
    bool resizes = false;  // it takes resizes
    // The commands by which people drain nodes with its cluster manager; {node} stands for the node's name. Empty:
    // Larder drains them.
    DrainCommands drain_commands;
    // node_back, node_added, node_drained or node_lost. A node that is left out is lost. If the nodes are the agent's,
    // it is removed once it is left out for the second time and has no attempts.
    std::vector<EngineEvent> nodes;
    // The last event of each attempt that the agent has. An attempt that has ended stays in the list until its end was
    // acknowledged.
    std::vector<EngineEvent> attempts;
};

struct AgentEngineOptions {
    std::vector<std::string> nodes;  // of the configuration, or those last known if they are the agent's
    bool agent_has_nodes = false;    // what the agent says of nodes and their GPUs holds
    std::string queue;               // the identity of the queue whose jobs the engine runs
    std::string instance;            // tells this process's sessions from those of other processes
    // The URL of an attempt's output, for people; {job} and {attempt} stand for numbers. Empty: none.
    std::string output_url;
};

class AgentEngine final : public Engine {
public:
    explicit AgentEngine(AgentEngineOptions options) : options_(std::move(options)) {
        for (const std::string& node : options_.nodes) nodes_.emplace(node, Node{});
    }

    void start(const EngineJob& job) override;
    void adopt(const EngineJob& job) override;
    void stop(JobId job, std::uint32_t attempt) override;
    std::vector<AttemptName> list() const override { return {told_.begin(), told_.end()}; }
    std::uint64_t lists() const override { return sessions_; }
    void stop_orphan(const AttemptName& orphan) override;
    std::optional<bool> can_resize() const override {
        return sessions_ > 0 ? std::optional(agent_resizes_) : std::nullopt;
    }
    void resize(const EngineJob& job) override;
    std::vector<EngineEvent> poll() override;
    void recorded(std::uint64_t events) override;
    Result<DrainCommands> drain_commands(const std::string& node) const override;
    void forget(JobId) override {}
    std::string output_of(JobId job, std::uint32_t attempt) const override;
    std::string warning() const override;
    bool is_connected() const override { return sessions_ > 0 && !is_silent_; }

    static constexpr std::size_t kActionsMax = 100;
    static constexpr std::size_t kNodesMax = 20'000;
    static constexpr std::size_t kGpuTypesMax = 64;
    // Begins a session and returns its name. Actions for the agent follow from its state.
    // unavailable: the scheduler has not resumed its own state yet. invalid_argument: a node has no number of GPUs, or
    // there are too many nodes or types of GPUs.
    Result<std::string> attach(const AgentState& state);
    // Forgets the actions up to `after`, which the agent has carried out, and returns the next, at most kActionsMax.
    // changed: another session has begun. invalid_argument: there never was such an action.
    Result<std::vector<AgentAction>> actions(const std::string& session, std::uint64_t after);
    // Takes a report. One that was taken before is ignored.
    // changed: as above. invalid_argument: a report before this one is missing, or there are too many nodes or types.
    Result<void> report(const std::string& session, std::uint64_t number, std::vector<EngineEvent> events);

    // is_recorded(n) tells if the effects of the first n of all events taken() from agents are on record.
    std::uint64_t taken() const { return taken_; }
    bool is_recorded(std::uint64_t events) const { return recorded_ >= events; }
    const std::string& queue() const { return options_.queue; }
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

    struct Node {
        EngineEvent::Kind state = EngineEvent::Kind::node_back;  // or node_drained, node_lost
        std::optional<NodeInventory> inventory;                  // nullopt: not told to this process
        bool was_left_out = false;                               // when an agent attached, and not told of since
    };

    Result<void> check_session(const std::string& session) const;
    AttemptName name_of(const EngineEvent& event) const;
    void add_event(EngineEvent event);
    // Handles an event of an attempt; those of attempts that the scheduler does not know are ignored.
    void take_attempt_event(EngineEvent event);
    void set_nodes(const AgentState& state);
    void take_node_event(EngineEvent event);
    void remove_node(const std::string& node, const std::string& why);
    bool is_in_use(const std::string& node) const;
    // invalid_argument: the events make more nodes or types of GPUs known than the scheduler is made for.
    Result<void> check_nodes(const std::vector<EngineEvent>& events) const;
    // Adds the action, or rejects the attempt if one of its nodes takes no jobs.
    void add_start(EngineJob job);
    // Adds the action, or refuses the resize if the agent takes none.
    void add_resize(EngineJob job);
    void add_stop(const std::string& queue, JobId job, std::uint32_t attempt);

    AgentEngineOptions options_;
    std::map<std::string, Node> nodes_;
    std::set<std::string, std::less<>> gpu_types_;  // of all nodes that this process was told of
    std::vector<std::string> unknown_nodes_;        // that the agent has and the configuration lacks
    std::map<JobId, Attempt> attempts_;             // that the scheduler wants, or waits for
    std::set<AttemptName> told_;        // attempts with which the agent attached, without those that have ended since
    std::vector<EngineEvent> events_;   // not polled yet
    std::vector<AgentAction> actions_;  // not acknowledged yet
    std::string agent_;
    std::uint64_t sessions_ = 0;
    std::uint64_t last_action_ = 0;
    std::uint64_t last_report_ = 0;
    std::uint64_t taken_ = 0;
    std::uint64_t recorded_ = 0;
    bool is_resumed_ = false;  // the scheduler has told us all of its attempts
    bool is_silent_ = false;
    bool agent_resizes_ = false;
    DrainCommands drain_commands_;
};

}  // namespace larder::scheduler
