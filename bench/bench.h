#pragma once

// `larder bench NAME [--quick] [--json] ...`: each bench answers one question about this machine, side by side with a
// peer or a limit measured in the same run. A bench starts its own daemon on its own directory, and ends and removes
// both.

namespace larder::bench {

// Runs the bench named by the arguments after "bench"; returns the exit code.
int bench_main(int argc, char** argv);

}  // namespace larder::bench
