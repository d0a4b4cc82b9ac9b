#pragma once

// The joint bench's cluster as input of the simulator: the same nodes with their caches, datasets, jobs, remote and
// plans, made as often as nodes report.

#include <string>
#include <vector>

#include "base/error.h"
#include "bench/joint_scenario.h"

namespace larder::bench {

// Returns how long each job takes to read all its epochs when all begin with an empty cache. `objective` is the
// allocator's, by its name in the config; `report_ages_s`: each node's time since its last report at the start.
Result<std::vector<double>> simulate_joint(const JointScenario& scenario, const std::string& objective,
                                           const std::vector<double>& report_ages_s);

}  // namespace larder::bench
