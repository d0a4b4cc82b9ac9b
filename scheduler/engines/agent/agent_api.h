#pragma once

// How the agent of a cluster manager drives an AgentEngine over HTTP: it attaches with its full state, takes actions by
// long poll, and reports events. A report is answered once its effects are on record, so the agent may forget what it
// has reported. docs/engines.md describes the protocol, docs/openapi/engine.yaml each message.

#include <boost/json/object.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "allocator/service/extension.h"
#include "base/clock.h"
#include "scheduler/engines/agent/agent_engine.h"

namespace larder::scheduler {

class AgentApi final : public allocator::Extension {
public:
    // Both must outlive this object.
    AgentApi(AgentEngine& engine, const Clock& clock) : engine_(engine), clock_(clock), heard_ns_(clock.now_ns()) {}

    std::span<const Route> routes() const override;
    void answer(std::size_t route, const HttpRequest& request, const std::string& name,
                const HttpRespond& respond) override;
    // Answers the requests that wait, if it is time.
    void tick() override;
    void put_status(boost::json::object&) const override {}
    std::string metrics_text() override { return ""; }

private:
    // A request for actions: answered once there are some.
    struct WaitingPoll {
        std::string session;
        std::uint64_t after = 0;
        std::int64_t until_ns = 0;
        HttpRespond respond;
        std::shared_ptr<bool> gone;
    };
    // A report or an attachment: answered once its effects are on record.
    struct WaitingReport {
        std::uint64_t events = 0;
        HttpResponse answer;
        HttpRespond respond;
        std::shared_ptr<bool> gone;
    };

    void attach(const HttpRequest& request, const HttpRespond& respond);
    void poll_actions(const HttpRequest& request, const HttpRespond& respond);
    void report(const HttpRequest& request, const HttpRespond& respond);
    void answer_when_recorded(HttpResponse answer, const HttpRequest& request, const HttpRespond& respond);
    bool agent_is_silent() const;
    // True if the poll was answered.
    bool try_answer(const WaitingPoll& poll);

    AgentEngine& engine_;
    const Clock& clock_;
    std::int64_t heard_ns_;  // when the agent was last heard of
    std::vector<WaitingPoll> polls_;
    std::vector<WaitingReport> reports_;
};

}  // namespace larder::scheduler
