#pragma once

// This node's side of an allocator: sends a report once a second, and applies the quotas and leased rates of the
// answer. Requests are sent from a separate thread, so that an allocator that hangs blocks nothing; call the agent on
// the control thread. While the allocator does not answer, quotas stay as they are, and rates stay until their lease
// expires and then fall to the lease's floor.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/server/http.h"
#include "base/server/http_client.h"
#include "cache/control/allocator_answer.h"
#include "cache/control/node.h"
#include "cache/control/node_reporter.h"
#include "cache/control/work_thread.h"

namespace larder::cache {

struct AgentStatus {
    bool connected = false;  // the last report was answered
    std::string problem;     // why the last report failed
    std::uint64_t plan = 0;  // number of the last plan applied
    std::int64_t lease_expires_ns = 0;
    std::uint64_t reports = 0;  // answered
    std::uint64_t failures = 0;
};

class AllocatorAgent {
public:
    // Puts all jobs at the floor rate. `context` is the control thread's; `context` and `node` must outlive the agent.
    // `state_directory` is the directory's number (state_lock.h).
    AllocatorAgent(boost::asio::io_context& context, Node& node, std::uint64_t state_directory);
    // Waits at most two seconds for a request in flight. Destroy the agent on the context's thread, or when the context
    // does not run.
    ~AllocatorAgent();

    void start();
    // Stops sending reports.
    void stop();
    const AgentStatus& status() const { return status_; }

private:
    void wait();
    void tick();
    void report();
    void send(std::string body, std::int64_t now_ns);
    // `sent_ns` is when the report was sent; the lease counts from then.
    void handle_answer(const Result<HttpResponse>& response, std::int64_t sent_ns);
    Result<void> apply(const HttpResponse& response, std::int64_t sent_ns);
    void log_problem(const Error& error);

    boost::asio::io_context& context_;
    Node& node_;
    SteadyClock clock_;
    boost::asio::steady_timer timer_;
    NodeReporter reporter_;
    AgentStatus status_;
    unsigned protocol_;  // the version of the next report
    std::uint64_t lease_applied_ = 0;
    std::int64_t reported_ns_ = 0;
    std::int64_t started_ns_ = 0;
    bool logged_waiting_ = false;
    std::string last_warning_;
    bool report_early_ = false;
    bool report_in_flight_ = false;
    HttpClient client_;  // used on the thread of `requests_` only
    WorkThread requests_;
};

}  // namespace larder::cache
