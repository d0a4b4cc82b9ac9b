#pragma once

// The allocator's problems as linear programs for CLP, by textbook: one variable per cache (of one dataset in one peer
// group) and one per job's bandwidth. Slow and plainly right, so tests and the assign bench hold assign() against it.
// Node disks and networks are left out; quotas count over all nodes of a group.

#include <cstdint>
#include <limits>
#include <vector>

namespace larder::bench::oracle {

struct LpCache {
    std::uint32_t group = 0;
    double size = 0;
    double floor = 0;
    double cap = 0;
};

struct LpRead {
    std::uint32_t cache = 0;
    double part = 0;  // of the job's bytes
};

struct LpJob {
    std::vector<LpRead> reads;
    double ideal = 0;
    double equal_rate = 0;
    double weight = 1;
    double floor = 0;  // of its bandwidth
    double cap = std::numeric_limits<double>::infinity();
    double highest = 0;  // rate that the cap allows when all that can be cached is; f* without a cap
};

struct LpProblem {
    double remote = 0;
    std::vector<double> group_cache;
    std::vector<LpCache> caches;
    std::vector<LpJob> jobs;
};

struct LpSplit {
    bool feasible = false;
    double remote = 0;          // least sum of bandwidths
    std::vector<double> cache;  // bytes of each
};

// The least remote bandwidth with which job j reads at rates[j]; caps count for equal shares only. With `keep_shares`,
// among the splits that leave every job able to read at its equal share's rate within the remote's bandwidth.
LpSplit least_remote(const LpProblem& problem, const std::vector<double>& rates, bool keep_shares);

// The largest sum of rates for a given split, every job between its equal share's rate and f*.
double largest_sum(const LpProblem& problem, const std::vector<double>& cache);

// The largest level r such that all jobs can read at clamp(r * weight * equal_rate, equal_rate, highest) within their
// caps, by bisection over linear programs; infinity when all can read at their highest.
double max_min_level(const LpProblem& problem);

}  // namespace larder::bench::oracle
