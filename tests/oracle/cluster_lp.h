#pragma once

// A cluster's state as a linear program, straight from the definition: one cache per dataset and peer group, and each
// job's part in the cache by where its GPUs are. Shared by the tests and the assign bench.

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
    // Takes equal shares from the plan.
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
