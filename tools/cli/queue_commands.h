#pragma once

// Lists of jobs submitted to the cluster's allocator, for `larder jobs`. Each function returns the exit code.

#include "tools/cli/context.h"

namespace larder::cli {

int list_queue(const Context& context);
int list_history(const Context& context, unsigned limit);

}  // namespace larder::cli
