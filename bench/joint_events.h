#pragma once

// What happens to a cluster in mid-run, and how soon the plan has converged again: a job ends, a job joins, a node's
// cache is lost, an operator pins a quota.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <string>
#include <vector>

#include "base/error.h"
#include "bench/joint_scenario.h"
#include "bench/work_directory.h"
#include "tools/cli/interrupt.h"

namespace larder::bench {

// One after the other, each when the cluster has converged after the one before: {policy, network, settled, events}, as
// docs/benchmarks.md has it. `directory` must not exist yet.
Result<boost::json::object> run_joint_events(const JointScenario& scenario, const std::vector<FileSet>& files,
                                             const std::string& directory, const std::string& objective,
                                             const cli::InterruptWatch& interrupt);

// As a table.
void print_joint_events(const boost::json::array& events);

}  // namespace larder::bench
