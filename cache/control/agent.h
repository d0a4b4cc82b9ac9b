#pragma once

// This node's side of an allocator: reports once a second, and applies what comes back, the quotas of the plan and the
// leased rates. Requests go out from a thread of their own, so that an allocator that hangs holds up nothing; the agent
// is asked for on the control thread. While the allocator is away the quotas stay as they are and the rates until their
// lease expires, then they fall to its floor.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/server/http.h"
#include "cache/control/allocator_answer.h"
#include "cache/control/node.h"
#include "cache/control/node_report.h"
#include "cache/control/work_thread.h"

namespace larder::cache {

struct AgentStatus {
    bool connected = false;  // the last report was answered
    std::string problem;     // why not
    std::uint64_t plan = 0;  // number of the last one applied
    std::int64_t lease_expires_ns = 0;
    std::uint64_t reports = 0;  // answered
    std::uint64_t failures = 0;
};

class AllocatorAgent {
public:
    // Jobs have the floor from here on. `context` is the control thread's; it and `node` must outlive the agent.
    // `state_directory`: its number (state_lock.h).
    AllocatorAgent(boost::asio::io_context& context, Node& node, std::uint64_t state_directory);
    // Waits for a request under way, two seconds at most. When the context does not run, or on its thread.
    ~AllocatorAgent();

    void start();
    // No more reports.
    void stop();
    const AgentStatus& status() const { return status_; }

private:
    void wait();
    void tick();
    void report();
    void send(std::string body, std::int64_t now_ns);
    // `sent_ns`: when the report went out, from which on the lease counts.
    void answered(const Result<HttpResponse>& response, std::int64_t sent_ns);
    Result<void> apply(const HttpResponse& response, std::int64_t sent_ns);
    void tell_problem(const Error& error);

    boost::asio::io_context& context_;
    Node& node_;
    SteadyClock clock_;
    boost::asio::steady_timer timer_;
    NodeReporter report_;
    AgentStatus status_;
    unsigned protocol_;  // the version of the next report
    std::uint64_t lease_applied_ = 0;
    std::int64_t reported_ns_ = 0;
    std::int64_t started_ns_ = 0;
    bool told_waiting_ = false;
    std::string warned_of_;
    bool soon_ = false;
    bool under_way_ = false;
    WorkThread requests_;
};

}  // namespace larder::cache
