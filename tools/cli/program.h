#pragma once

// What the main functions of `larder` and of the programs it hands over to share.

#include "tools/cli/context.h"

namespace larder::cli {

// Reads the command line, and does what it says. Returns the exit code; what is wrong is said on stderr.
int run_app(CLI::App& app, Context& context, int argc, char** argv);

// Ends this program in favour of larder-<command>, which lies beside it and gets the same command line. Returns only
// when it could not be started, which it says: the exit code.
int hand_over(const char* command, char** argv);

}  // namespace larder::cli
