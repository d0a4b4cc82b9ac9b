#pragma once

// What runs one attempt of a job on this machine: a small process between the daemon and the job's command, so that
// both outlive the daemon. It runs the command in a process group of its own, passes SIGTERM on, kills what is left
// after the grace, and writes down how it ended. One attempt is run at most once, however many runners are told to.

#include <string>

namespace larder::scheduler {

// The whole program but its command line: to be called by a process that leads a session. Gives its exit code.
int run_attempt(const std::string& directory);

}  // namespace larder::scheduler
