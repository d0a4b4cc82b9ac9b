#pragma once

// Decides whether a cluster has converged to its plan: for some seconds the plan's quotas have been unchanged and in
// force on their nodes, and every job has read within 5 % of the plan's prediction. The cached bytes follow the quotas
// later, as fast as jobs miss blocks to admit: up to two epochs after a loss, because a job rereads only in the next
// epoch what it had read by then. A tier of a node has followed when it has cached its quota, give or take a segment,
// or when it has less and stops growing. One thread.

#include <boost/json/object.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "base/error.h"
#include "bench/joint_cluster.h"
#include "bench/joint_jobs.h"
#include "bench/quota_watch.h"

namespace larder::bench {

class Convergence {
public:
    static constexpr double kWithin = 0.05;

    // `runs`: the running jobs.
    Convergence(JointCluster& cluster, const JointRuns& runs) : cluster_(cluster), runs_(runs) {}

    // Takes a sample. Call it a few times a second.
    Result<void> look(const boost::json::object& plan, std::int64_t now_ns);

    // True if converged at the last look. False until a whole window has been seen.
    bool reached() const { return seen_all_ && quotas_stand() && largest_error_ <= kWithin; }
    bool cache_has_followed() const { return seen_all_ && cache_has_followed_; }
    bool quotas_stand() const { return quotas_.stood_ns() >= kWindow_ns; }
    // The largest relative difference between a job's rate and its prediction.
    double largest_error() const { return largest_error_; }

private:
    static constexpr std::int64_t kWindow_ns = 5'000'000'000;

    struct Cached {
        TierQuota quota;
        std::uint64_t used_bytes = 0;
    };
    struct Look {
        std::int64_t at_ns = 0;
        std::map<std::string, std::uint64_t> read_bytes;  // by job
        std::map<std::string, double> predicted;          // by job
        std::map<std::string, Cached> cached;             // by node, dataset and tier
    };

    Result<std::map<std::string, Cached>> cached_of(const boost::json::object& plan);
    // True if a node's tier has followed its quota, judged by its cache now and at the start of the window.
    static bool has_followed(const Cached& now, const Cached* at_the_start);
    bool all_have_followed() const;
    // The job's relative difference from its prediction over the window; infinite if there was no prediction.
    double error_of(const std::string& job) const;

    JointCluster& cluster_;
    const JointRuns& runs_;
    std::deque<Look> looks_;
    bool seen_all_ = false;
    QuotaWatch quotas_;
    bool cache_has_followed_ = false;
    double largest_error_ = 1;
};

}  // namespace larder::bench
