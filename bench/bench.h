#pragma once

// `larder bench NAME [--quick] [--json] ...`: each bench answers one question about this machine, side by side with a
// peer or a limit measured in the same run. It starts a daemon of its own on a directory of its own, and removes both.

namespace larder::bench {

// The arguments after "bench"; returns the exit code.
int bench_main(int argc, char** argv);

}  // namespace larder::bench
