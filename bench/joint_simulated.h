#pragma once

// The joint bench's cluster as input of the simulator: the same nodes with their caches, datasets, jobs, remote and
// plans, made as often as nodes report.

#include <string>
#include <vector>

#include "base/error.h"
#include "bench/joint_scenario.h"

namespace larder::bench {

// Returns how long each job takes to read all its epochs when all begin with an empty cache. `policy` is one of
// reality_policies(); `report_ages_s`: each node's time since its last report at the start, unused by "lru".
Result<std::vector<double>> simulate_joint(const JointScenario& scenario, const std::string& policy,
                                           const std::vector<double>& report_ages_s);

}  // namespace larder::bench
