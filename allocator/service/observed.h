#pragma once

// The recent behaviour of jobs and nodes, from the reports of the last seconds: the rate each job reads at and takes
// from the remote, the part of its time it waits for data, and the last lease of each node. For people to look at;
// plans do not use it (f* is measured in ideal_rate.h). Pure bookkeeping: one thread at a time, the caller passes the
// time.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "allocator/lease_ledger.h"
#include "allocator/protocol/node_report.h"

namespace larder::allocator {

struct JobRate {
    double bytes_per_second = 0;  // delivered to the training loops of all nodes
    double stall_ratio = 0;       // of the loops' time, from 0 to 1
    // Taken from the remote for the job by all its nodes. Empty: not all nodes report it.
    std::optional<double> remote_bytes_per_second;
};

struct LeaseView {
    std::uint64_t number = 0;
    std::int64_t granted_ns = 0;
    std::int64_t expires_ns = 0;
    double bytes_per_second = 0;  // of all its jobs together
    bool cut = false;
    // Time of the first lease of an unbroken row of leases clearly below the wanted rates.
    std::optional<std::int64_t> short_since_ns;
};

class Observed {
public:
    // Takes a report that the cluster accepted.
    void report(const NodeReport& report, std::int64_t now_ns);
    void leased(const std::string& node, const Lease& lease, std::int64_t now_ns);

    // Returns the rates of jobs on nodes that reported at least twice in the last seconds, by name.
    std::map<std::string, JobRate> job_rates(std::int64_t now_ns) const;
    // Returns the node's last lease; nullopt if there was none since this process started.
    std::optional<LeaseView> lease_of(const std::string& node) const;

private:
    struct Sample {
        std::int64_t at_ns = 0;
        std::uint64_t bytes = 0;
        double busy_s = 0;
        std::uint32_t ranks = 0;
        std::optional<std::uint64_t> remote_bytes;
    };
    using Window = std::deque<Sample>;
    struct KnownNode {
        std::uint64_t instance = 0;
        std::map<std::string, Window> jobs;
        std::optional<LeaseView> lease;
    };

    static constexpr std::int64_t kWindow_ns = 5'000'000'000;
    static constexpr std::int64_t kSilent_ns = 10'000'000'000;

    static void add_sample(Window& window, const Sample& sample);

    std::map<std::string, KnownNode> nodes_;
};

}  // namespace larder::allocator
