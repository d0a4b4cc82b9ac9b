#pragma once

// Has a cluster converged to its plan? It has when every quota is applied, and every job has for some seconds read
// within 5 % of what the plan predicted meanwhile. A quota is applied where a tier of a node has cached as much, or
// more or less by at most a segment; or less, but no more is coming: its jobs find nothing more to admit. One thread.

#include <boost/json/object.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "base/error.h"
#include "bench/joint_cluster.h"
#include "bench/joint_jobs.h"

namespace larder::bench {

class Convergence {
public:
    static constexpr double kWithin = 0.05;

    // `runs`: the jobs that run.
    Convergence(JointCluster& cluster, const JointRuns& runs) : cluster_(cluster), runs_(runs) {}

    // To be called a few times a second.
    Result<void> look(const boost::json::object& plan, std::int64_t now_ns);

    // As of the last look. Never before a whole window has been seen.
    bool reached() const { return seen_all_ && applied_ && largest_error_ <= kWithin; }
    bool applied() const { return applied_; }
    // Of the jobs: how far the one that is off the most reads from what was predicted, as a part of that.
    double largest_error() const { return largest_error_; }

private:
    static constexpr std::int64_t kWindow_ns = 5'000'000'000;

    struct Cached {
        std::uint64_t quota_bytes = 0;
        std::uint64_t used_bytes = 0;
    };
    struct Look {
        std::int64_t at_ns = 0;
        std::map<std::string, std::uint64_t> read_bytes;  // by job
        std::map<std::string, double> predicted;          // likewise
        std::map<std::string, Cached> cached;             // by node, dataset and tier
    };

    Result<std::map<std::string, Cached>> cached_of(const boost::json::object& plan);
    static bool is_applied(const Cached& now, const Cached* at_the_start);
    bool all_applied() const;
    // How far it is off, as a part of what was predicted while the window lasted; infinite: it was not predicted.
    double error_of(const std::string& job) const;

    JointCluster& cluster_;
    const JointRuns& runs_;
    std::deque<Look> looks_;
    bool seen_all_ = false;
    bool applied_ = false;
    double largest_error_ = 1;
};

}  // namespace larder::bench
