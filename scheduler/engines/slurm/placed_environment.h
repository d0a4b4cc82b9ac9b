#pragma once

// The variables that Slurm's TaskProlog gives each task of a job that Larder has placed: docs/slurm.md#larder-decides.
// A pure function of the variables that Slurm sets for it.

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace larder::scheduler::slurm {

// `variable` returns a variable of Slurm, empty if it is not set. Returns nothing for a job of another partition.
// `socket` is the node's larderd; it may be empty.
std::vector<std::pair<std::string, std::string>> placed_environment(
    const std::function<std::string(const char* name)>& variable, const std::vector<std::string>& partitions,
    const std::string& socket);

}  // namespace larder::scheduler::slurm
