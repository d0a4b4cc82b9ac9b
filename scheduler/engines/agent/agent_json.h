#pragma once

// The JSON of the messages between an AgentEngine and its agent. What the agent sends is checked: an error names the
// key.

#include <boost/json/object.hpp>

#include <string>

#include "base/error.h"
#include "scheduler/engines/agent/agent_engine.h"

namespace larder::scheduler {

// The action of starting an attempt has one task for each of its nodes, in the order of ranks.
boost::json::object to_json(const AgentAction& action);
// `where` is put before errors.
Result<EngineEvent> read_engine_event(const boost::json::object& object, const std::string& where);
Result<AgentState> read_agent_state(const boost::json::object& object);

// The events that the agent sends in one report.
struct AgentReport {
    std::string session;
    std::uint64_t number = 0;
    std::vector<EngineEvent> events;
};
Result<AgentReport> read_agent_report(const boost::json::object& object);

}  // namespace larder::scheduler
