#pragma once

// The best steady state of a small cluster, to judge assign() by. It shares no code with the allocator but the structs
// of its input. A steady state is a split of the cache and the jobs' rates. Disks, networks in and out, peer groups,
// the operator's limits and last epochs count as the model says:
//
//     remote       sum of b_j <= B,  b_j >= f_j (1 - h_j),  h_j = sum of g_j part_jk y_dn over the nodes n of each
//                  group k
//     disk of n    sum of f_j part_jk y_dn (on disk) <= disk
//     network in   sum of f_j run_jn (1 - g_j y_dn) <= nic
//     network out  sum of f_j (part_jk - run_jn) y_dn <= nic
//
// where y_dn is the part of dataset d that node n caches, part_jk the part of job j that runs in group k, run_jn the
// part that runs on node n, and g_j = 1 - 1 / epochs, since nothing is cached before the first epoch. Disks and
// networks out carry what is read once the cache is filled. Every job reads at least at its equal share's rate.
//
// For given rates these are linear programs. The products f_j y_dn make the largest sum of rates a bilinear program. It
// is solved by branching on the rates: within a box of rates, McCormick's bounds on each product give a linear program
// whose value no steady state in the box exceeds (G. P. McCormick, Mathematical Programming 10, 1976).

#include <cstdint>
#include <span>
#include <vector>

#include "allocator/state.h"

namespace larder::oracle {

// Returns each job's rate from an equal share of the cache of its groups, of the remote, and of each disk and network.
// The cache of a dataset lies on all nodes of a group in proportion to their room. Jobs must have GPUs.
std::vector<double> equal_share_rates(const allocator::ClusterState& state);

struct LargestSum {
    double reached = 0;  // by a steady state that was found
    double bound = 0;    // no steady state exceeds it
    double relaxed = 0;  // the value of the first program, which no steady state exceeds either
    int programs = 0;    // linear programs that were solved
};

struct SearchLimits {
    double gap = 0.002;    // ends when `bound` is at most this fraction above `reached`
    int programs = 2'000;  // ends after so many linear programs
};

// Returns the largest sum of values[j] * rate of job j. `known` is a sum that some steady state is known to reach.
LargestSum largest_sum_of_rates(const allocator::ClusterState& state, std::span<const double> values, double known,
                                const SearchLimits& limits = {});

// Returns the most by which cache can lower the remote bytes per second that jobs need at f*, with every job at least
// at its equal share's rate. A job with a floor counts as needing that much.
double largest_saving(const allocator::ClusterState& state);

// Returns the largest level r, within 0.1 %, at which every job reads at the least of weight * r * its equal share's
// rate and the highest rate that its f* and its cap allow. The level at which every job reaches its highest rate is the
// largest that counts. Jobs whose weight is below 1 never fall below their equal share.
double largest_level(const allocator::ClusterState& state);

// Returns the highest rates of largest_level().
std::vector<double> highest_rates(const allocator::ClusterState& state);

// Returns the level at which these rates are: the smallest rate / (weight * equal share's rate) of the jobs below their
// highest rates; infinity if there are none.
double level_of(const allocator::ClusterState& state, std::span<const double> rates);

}  // namespace larder::oracle
