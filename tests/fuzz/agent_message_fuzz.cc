// Any bytes as a message of a cluster manager's agent. A refused message says why. An accepted one is given to an
// engine that has attempts and a session; the engine's events are about attempts and nodes that it has been given, and
// its actions can be sent.

#include <boost/json/serialize.hpp>

#include <cstdint>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/server/json_reader.h"
#include "scheduler/engines/agent/agent_json.h"

namespace larder::scheduler {
namespace {

template <typename Value>
bool accepted(const Result<Value>& result) {
    LARDER_ASSERT(result || !result.error().message.empty());
    return result.has_value();
}

void check(AgentEngine& engine, const std::string& session, bool agent_has_nodes) {
    const auto actions = engine.actions(session, 0);
    LARDER_ASSERT(actions.has_value());
    for (const AgentAction& action : *actions) LARDER_ASSERT(!boost::json::serialize(to_json(action)).empty());
    for (const EngineEvent& event : engine.poll()) {
        const bool is_own = event.queue.empty() || event.queue == "q";
        const bool is_known = event.node.empty() ? is_own && (event.job == 1 || event.job == 2)
                                                 : agent_has_nodes || (event.node == "n1" && !event.inventory);
        LARDER_ASSERT(is_known);
    }
}

void give(const boost::json::object& message, bool agent_has_nodes) {
    AgentEngine engine({.nodes = {"n1"}, .agent_has_nodes = agent_has_nodes, .queue = "q", .instance = "x"});
    engine.adopt({.job = 1, .attempt = 1, .gpus = {{"n1", 1}}});
    engine.resize({.job = 1, .attempt = 1, .gpus = {{"n1", 1}, {"n2", 1}}, .resize = 2});
    engine.start({.job = 2, .attempt = 3, .gpus = {{"n1", 2}}});
    engine.recorded(0);
    auto session = engine.attach({.agent = "a", .nodes = {}, .attempts = {{.queue = "q", .job = 1, .attempt = 1}}});
    LARDER_ASSERT(session.has_value());
    if (const auto state = read_agent_state(message); accepted(state)) {
        // Refused if the nodes are the agent's, and one has no GPUs.
        if (auto again = engine.attach(*state); accepted(again)) session = std::move(again);
    }
    if (auto report = read_agent_report(message); accepted(report)) {
        static_cast<void>(accepted(engine.report(*session, report->number, std::move(report->events))));
    }
    check(engine, *session, agent_has_nodes);
}

}  // namespace
}  // namespace larder::scheduler

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto object = larder::parse_json_object({reinterpret_cast<const char*>(data), size}, "request body");
    LARDER_ASSERT(object || !object.error().message.empty());
    for (const bool agent_has_nodes : {false, true}) {
        if (object) larder::scheduler::give(*object, agent_has_nodes);
    }
    return 0;
}
