#pragma once

// Helpers shared by the main functions of `larder` and of the programs it hands over to.

#include "tools/cli/context.h"

namespace larder::cli {

// Reads the command line and runs the command. Errors go to stderr. Returns the exit code.
int run_app(CLI::App& app, Context& context, int argc, char** argv);

// Replaces this process by larder-<command>, found beside it, with the same command line. Returns only if the program
// could not be started: prints the error and returns the exit code.
int hand_over(const char* command, char** argv);

}  // namespace larder::cli
