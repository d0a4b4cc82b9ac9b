#pragma once

// Events in a running cluster, and how soon the plan converges again: a job ends, a job joins, a node's cache is lost,
// an operator pins a quota.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <string>
#include <vector>

#include "base/error.h"
#include "bench/joint_scenario.h"
#include "bench/work_directory.h"
#include "tools/cli/interrupt.h"

namespace larder::bench {

// Runs the events one after the other, each once the cluster has converged after the one before. Returns {policy,
// network, settled, events}, as in docs/benchmarks.md. `directory` must not exist yet.
Result<boost::json::object> run_joint_events(const JointScenario& scenario, const std::vector<FileSet>& files,
                                             const std::string& directory, const std::string& objective,
                                             const cli::InterruptWatch& interrupt);

// Prints the events as a table.
void print_joint_events(const boost::json::array& events);

}  // namespace larder::bench
