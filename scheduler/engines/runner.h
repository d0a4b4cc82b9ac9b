#pragma once

// Runs one attempt of a job on this machine, as a small process between the daemon and the job's command, so that both
// outlive the daemon. The runner starts the command in its own process group and control group, passes SIGTERM on,
// kills what is left after the grace period, and records how the command ended and whether it was told to stop. The
// runner itself stays outside the control group, and the command's processes cannot stop it by SIGTERM. An attempt runs
// at most once, however many runners are started for it.

#include <string>

namespace larder::scheduler {

// The whole runner program except its command line. The calling process must lead a session. Returns the exit code.
int run_attempt(const std::string& directory);

}  // namespace larder::scheduler
