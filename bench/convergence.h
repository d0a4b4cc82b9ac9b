#pragma once

// Has a cluster converged to its plan? It has when for some seconds the plan's quotas have stood, in force on their
// nodes, and every job has meanwhile read within 5 % of what the plan predicted. What is cached follows the quotas
// later, as fast as jobs come by blocks to admit: up to two epochs after it was lost, because what a job had read by
// then it reads again in the next. It has followed where a tier of a node has cached its quota, more or less by at most
// a segment; or less, but no more is coming. One thread.

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

    // `runs`: the jobs that run.
    Convergence(JointCluster& cluster, const JointRuns& runs) : cluster_(cluster), runs_(runs) {}

    // To be called a few times a second.
    Result<void> look(const boost::json::object& plan, std::int64_t now_ns);

    // As of the last look. Never before a whole window has been seen.
    bool reached() const { return seen_all_ && quotas_stand() && largest_error_ <= kWithin; }
    bool cache_has_followed() const { return seen_all_ && cache_has_followed_; }
    bool quotas_stand() const { return quotas_.stood_ns() >= kWindow_ns; }
    // Of the jobs: how far the one that is off the most reads from what was predicted, as a part of that.
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
        std::map<std::string, double> predicted;          // likewise
        std::map<std::string, Cached> cached;             // by node, dataset and tier
    };

    Result<std::map<std::string, Cached>> cached_of(const boost::json::object& plan);
    // Of a tier of a node, by what it is now and was when the window began.
    static bool has_followed(const Cached& now, const Cached* at_the_start);
    bool all_have_followed() const;
    // How far it is off, as a part of what was predicted while the window lasted; infinite: it was not predicted.
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
