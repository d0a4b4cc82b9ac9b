#pragma once

// This node's side of an allocator: sends a report once a second, and applies the quotas and leased rates of the
// answer. Requests are sent from a separate thread, so that an allocator that hangs blocks nothing; call the agent on
// the control thread. While the allocator does not answer, quotas stay as they are, and rates stay until their lease
// expires and then fall to the lease's floor.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/protocol/node_report.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/server/http.h"
#include "base/server/http_client.h"
#include "cache/control/daemon_config.h"
#include "cache/control/job_limits.h"
#include "cache/control/node.h"
#include "cache/control/promised_floor.h"
#include "cache/shard/statistics.h"
#include "cache/store/store.h"

namespace larder::cache {

// A dataset of the node, whether it is served or not.
struct ReportedDataset {
    allocator::DatasetReport report;  // its name and quotas; the reporter adds its size and its cached bytes
    std::uint64_t payload_bytes = 0;  // of all its blocks
    std::uint64_t blocks = 0;
    std::uint32_t block_bytes_max = 0;  // payload of its largest block

    const std::string& name() const { return report.name; }
};

// The endpoint at which peers reach the node; empty without peers.
struct ReportedPeers {
    std::string group;
    std::string endpoint;
};

// The report that this node sends its allocator once a second: the node's capacity, the cached bytes of each dataset,
// and the bytes, waiting time and demand of each job. Counters only grow while the daemon runs. Sizes are as stored
// (records have headers and padding), so that quota / size is the fraction of the dataset that fits. Control thread
// only.
class NodeReporter {
public:
    // `state_directory` is the directory's number (state_lock.h).
    explicit NodeReporter(std::uint64_t state_directory);

    // `room` is the capacity that the allocator may assign on this node. `lease_applied` is the number of the current
    // lease; 0: none.
    allocator::NodeReport make(const AllocatorClientConfig& allocator, Quota room,
                               const std::vector<ReportedDataset>& datasets, const ShardStatistics& statistics,
                               std::uint64_t lease_applied, std::int64_t now_ns, const ReportedPeers& peers = {});

private:
    // A job as reported: sums over all its datasets, under the dataset of which it reads most.
    struct Job {
        std::string dataset;
        std::uint64_t dataset_bytes_delivered = 0;  // of `dataset` only
        std::uint32_t sessions = 0;
        std::uint32_t loops = 0;
        std::uint64_t bytes = 0;
        std::int64_t busy_ns = 0;
        std::uint64_t remote_bytes = 0;
        std::uint64_t waiting_bytes = 0;
        std::uint64_t unread_bytes = 0;
        std::uint64_t effective_bytes = 0;
        std::optional<allocator::WaitsReport> waits;
        bool has_waits = false;
        std::optional<std::uint32_t> epoch;  // nullopt before the first read, because the job may resume at any epoch
    };
    // The last observation of a job.
    struct Seen {
        std::int64_t at_ns = 0;
        std::int64_t session_at_ns = 0;
        std::uint32_t loops = 0;
        std::uint64_t remote_bytes = 0;
        double demand_bytes_per_second = 0;
    };

    static std::map<std::string, Job> jobs_of(const ShardStatistics& statistics);
    // Updates `seen`. Returns false if the job has ended.
    bool observe(const Job& job, Seen& seen, std::int64_t now_ns) const;

    // Cache bytes per dataset byte, as reported.
    struct StoredRatio {
        double ratio = 0;
        bool is_measured = false;  // false: the largest possible ratio
    };

    // The bytes that the whole dataset would take in the cache of a node with this room.
    std::uint64_t estimate_stored_bytes(const ReportedDataset& dataset, const StoreUsage& usage, Quota room);
    allocator::DatasetReport report_of(const ReportedDataset& dataset, const ShardStatistics& statistics, Quota room);

    std::uint64_t instance_;
    std::uint64_t state_directory_;
    std::map<std::string, Seen> seen_;
    std::map<std::string, StoredRatio> stored_ratios_;  // by dataset
};

// The allocator's answer to a report, checked and in this node's types: quotas, and the lease of its jobs' rates.
struct AllocatorAnswer {
    std::uint64_t plan = 0;               // number of the plan
    std::map<std::string, Quota> quotas;  // by dataset
    std::uint64_t lease = 0;              // number of the lease
    RateLease rates;
    // Nodes whose cache may be read; their endpoints are not checked. nullopt: the list whose etag was reported.
    std::optional<std::vector<PeerAddress>> peers;
    std::uint64_t peers_etag = 0;
    bool cut = false;               // the lease is less than planned: other nodes still hold the rest
    std::vector<std::string> warm;  // datasets to warm now
};

// `version` is the protocol's (allocator/protocol/codec.h). The lease begins at `from_ns`. Errors name the JSON path of
// the wrong value.
Result<AllocatorAnswer> read_allocator_answer(std::string_view json, unsigned version, std::int64_t from_ns);

struct AgentStatus {
    bool connected = false;             // the last report was answered
    std::string problem;                // why the last report failed
    std::uint64_t plan = 0;             // number of the last plan applied
    std::int64_t lease_expires_ns = 0;  // as RateLease::expires_ns
    std::uint64_t reports = 0;          // answered
    std::uint64_t failures = 0;
};

class AllocatorAgent {
public:
    // Puts all jobs at the floor rate. `floor` says which. `context` is the control thread's; `context` and `node` must
    // outlive the agent. `state_directory` is the directory's number (state_lock.h).
    AllocatorAgent(boost::asio::io_context& context, Node& node, std::uint64_t state_directory,
                   const PromisedFloor& floor);
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
    void send(std::string body, std::int64_t now_ns, std::int64_t slept_before_ns);
    // `sent_ns` is when the report was sent; the lease counts from then.
    // `slept_before_ns`: slept_ns() when the report was sent.
    void handle_answer(const Result<HttpResponse>& response, std::int64_t sent_ns, std::int64_t slept_before_ns);
    Result<void> apply(const HttpResponse& response, std::int64_t sent_ns, std::int64_t slept_before_ns);
    Result<void> apply_quotas(const AllocatorAnswer& answer, std::int64_t sent_ns);
    void log_problem(const Error& error);

    boost::asio::io_context& context_;
    Node& node_;
    SteadyClock clock_;
    boost::asio::steady_timer timer_;
    NodeReporter reporter_;
    AgentStatus status_;
    unsigned protocol_;                        // the version of the next report
    std::optional<std::uint64_t> peers_etag_;  // of the list of peers in force
    PromisedFloor floor_;
    std::int64_t reported_ns_ = 0;
    std::int64_t started_ns_ = 0;
    bool logged_waiting_ = false;
    std::string last_warning_;
    bool report_early_ = false;
    bool report_in_flight_ = false;
    HttpClient client_;                  // used on the thread of `requests_` only
    boost::asio::thread_pool requests_;  // of one thread
};

}  // namespace larder::cache
