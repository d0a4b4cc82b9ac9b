#pragma once

// The cluster of the joint bench as the simulator takes it: the same nodes, each with a cache of its own, datasets,
// jobs, remote and plans, made as often as its nodes report.

#include <string>
#include <vector>

#include "base/error.h"
#include "bench/joint_scenario.h"

namespace larder::bench {

// How long each job takes to read all its epochs, from the moment when all begin with nothing cached. `objective` is
// the allocator's, under the name its config has for it; `report_ages_s`: how long before that each node reported last.
Result<std::vector<double>> simulate_joint(const JointScenario& scenario, const std::string& objective,
                                           const std::vector<double>& report_ages_s);

}  // namespace larder::bench
