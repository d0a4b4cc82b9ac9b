#pragma once

// The allocator's problems as textbook linear programs for CLP: one variable per cache (of one dataset in one peer
// group) and one for each job's bandwidth. The programs are slow but easy to verify, so tests and the assign bench
// check assign() against them. Node disks and networks are left out; quotas count over all nodes of a group.

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace larder::oracle {

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
    double floor = 0;  // of the job's bandwidth
    double cap = std::numeric_limits<double>::infinity();
    double highest = 0;  // the rate that `cap` allows with as much cached as fits; f* without a cap
};

struct LpProblem {
    double remote = 0;
    std::vector<double> group_cache;
    std::vector<LpCache> caches;
    std::vector<LpJob> jobs;
};

// Scales bytes and bytes per second to near 1, the range that a simplex code's tolerances are meant for.
struct LpScale {
    double bytes = 1;
    double rate = 1;
};
LpScale scale_of(const LpProblem& problem);

struct LpSplit {
    bool feasible = false;
    double remote = 0;          // the least sum of bandwidths
    std::vector<double> cache;  // bytes of each cache
};

// Returns the split of the caches that needs the least remote bandwidth if each job j reads at rates[j]. With
// `keep_shares`, every job must also be able to read at its equal share, within its cap and the remote's bandwidth.
// Otherwise caps do not count.
LpSplit least_remote(const LpProblem& problem, const std::vector<double>& rates, bool keep_shares);

// Returns the largest sum of rates for a given split, with every job between its equal share's rate and f*.
double largest_sum(const LpProblem& problem, const std::vector<double>& cache);

// Returns the largest level r at which all jobs can read at clamp(r * weight * equal_rate, equal_rate, highest) within
// their caps, by bisection over linear programs. Returns infinity if all jobs can read at `highest`.
double max_min_level(const LpProblem& problem);
// Does the same with a program of the caller's, which returns the split that needs the least remote bandwidth at rates.
double max_min_level(const LpProblem& problem,
                     const std::function<LpSplit(const std::vector<double>& rates)>& least_remote_at);

}  // namespace larder::oracle
