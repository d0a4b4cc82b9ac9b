#pragma once

// A cluster's state as a linear program. There is one cache per dataset and peer group. A job uses the caches of its
// dataset in proportion to its GPUs in each group. Shared by the tests and the assign bench.

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "allocator/plan.h"
#include "allocator/state.h"
#include "tests/oracle/lp.h"

namespace larder::oracle {

class ClusterLp {
public:
    // Takes each job's equal-share rate from the plan.
    ClusterLp(const allocator::ClusterState& state, const allocator::Plan& plan);

    const LpProblem& problem() const { return problem_; }
    // Returns the bytes of each of the problem's caches under the plan's quotas.
    std::vector<double> cache_of(const allocator::ClusterState& state, const allocator::Plan& plan) const;
    // Returns every job's f*.
    std::vector<double> ideals() const;

private:
    LpProblem problem_;
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> caches_;  // by dataset and peer group
};

}  // namespace larder::oracle
