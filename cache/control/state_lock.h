#pragma once

// One daemon a state directory: a lock file that the kernel frees with the process, whatever its end.

#include <string>

#include "base/error.h"
#include "base/file.h"

namespace larder::cache {

// Held for as long as the descriptor is open. `already_exists` names the process that has it.
Result<FileDescriptor> lock_state_directory(const std::string& directory);

}  // namespace larder::cache
