#pragma once

// Builds the scheduler of submitted jobs for larder-allocator: policy, placer, engine and record, mounted on the
// allocator's API.

#include "allocator/service/extension.h"
#include "scheduler/live/live_config.h"

namespace larder::tools {

// Returns the function that mounts the scheduler; empty if the config has no GPUs. `state_directory` is the
// allocator's; empty: none. An error says what is wrong with the config or its file of cells.
Result<allocator::MakeExtension> make_job_extension(const scheduler::LiveConfig& config,
                                                    const std::string& state_directory);

}  // namespace larder::tools
