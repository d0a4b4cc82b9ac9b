#pragma once

// Decides whether a cluster has converged to its plan. It has if, for some seconds, the plan's quotas have been
// unchanged and in force on their nodes, and every job has read within 5 % of the plan's prediction. The cached bytes
// follow the quotas later, as fast as jobs miss blocks that can be admitted: up to two epochs after a loss, because a
// job reads the blocks that it had read before the loss only in its next epoch. A tier of a node matches its quota when
// its cached bytes differ from the quota by at most a segment, or when they are fewer and no longer grow. One thread.

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
    Result<void> take_sample(const boost::json::object& plan, std::int64_t now_ns);

    // True if converged at the last sample. False until a whole window has been seen.
    bool reached() const { return has_full_window_ && quotas_are_stable() && largest_error_ <= kWithin; }
    bool cache_matches_quotas() const { return has_full_window_ && cache_matches_quotas_; }
    bool quotas_are_stable() const { return quotas_.stable_ns() >= kWindow_ns; }
    // The largest relative difference between a job's rate and its prediction.
    double largest_error() const { return largest_error_; }

private:
    static constexpr std::int64_t kWindow_ns = 5'000'000'000;

    struct TierCache {
        TierQuota quota;
        std::uint64_t used_bytes = 0;
    };
    struct Sample {
        std::int64_t at_ns = 0;
        std::map<std::string, std::uint64_t> read_bytes;  // by job
        std::map<std::string, double> predicted;          // by job
        std::map<std::string, TierCache> cached;          // by node, dataset and tier
    };

    Result<std::map<std::string, TierCache>> read_caches(const boost::json::object& plan);
    // True if a node's tier matches its quota, judged by its cache now and at the start of the window.
    static bool matches_quota(const TierCache& now, const TierCache* at_the_start);
    bool all_match_quotas() const;
    // The job's relative difference from its prediction over the window; infinite if there was no prediction.
    double error_of(const std::string& job) const;

    JointCluster& cluster_;
    const JointRuns& runs_;
    std::deque<Sample> samples_;
    bool has_full_window_ = false;
    QuotaWatch quotas_;
    bool cache_matches_quotas_ = false;
    double largest_error_ = 1;
};

}  // namespace larder::bench
