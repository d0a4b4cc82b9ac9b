#pragma once

// Ensures that one daemon at a time uses a state directory, by a lock file that the kernel releases when the process
// ends. The directory also stores a number by which an allocator recognises a restarted daemon.

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace larder::cache {

// The lock is held while the descriptor is open. `already_exists` names the process that holds it.
Result<FileDescriptor> lock_state_directory(const std::string& directory);

// The directory's number: not 0, drawn when the directory is first used. The caller must hold the lock.
Result<std::uint64_t> load_or_create_directory_number(const std::string& directory);

// A random number, not 0, that every JSON reader represents exactly.
std::uint64_t draw_number();

}  // namespace larder::cache
