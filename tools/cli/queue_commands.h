#pragma once

// Lists of the jobs that were submitted to the cluster's allocator, for `larder jobs`. Each gives the exit code.

#include "tools/cli/context.h"

namespace larder::cli {

int list_queue(const Context& context);
int list_history(const Context& context, unsigned limit);

}  // namespace larder::cli
