#pragma once

// Puts the scheduler of submitted jobs together for larder-allocator: policy, placer, engine and record, mounted on the
// allocator's API.

#include "allocator/service/extension.h"
#include "scheduler/live/config.h"

namespace larder::tools {

// Nothing is mounted where the config has no GPUs. `state_directory`: the allocator's; empty: it has none. An error
// says what is wrong with the config, the file of cells included.
Result<allocator::MakeExtension> run_jobs(const scheduler::LiveConfig& config, const std::string& state_directory);

}  // namespace larder::tools
