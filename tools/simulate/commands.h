#pragma once

// `larder simulate`: months of a cluster in seconds, from a trace.

#include "tools/cli/context.h"

namespace larder::cli {

void add_simulate_command(CLI::App& app, Context& context);        // simulate TRACE
void add_compare_command(CLI::App& simulate, Context& context);    // simulate compare TRACE
void add_capacity_command(CLI::App& simulate, Context& context);   // simulate capacity TRACE
void add_guarantee_command(CLI::App& simulate, Context& context);  // simulate guarantee TRACE

}  // namespace larder::cli
