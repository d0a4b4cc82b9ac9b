#pragma once

// One daemon a state directory: a lock file that the kernel frees with the process, whatever its end; and a number that
// the directory keeps, by which an allocator knows a daemon that was started again on it.

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace larder::cache {

// Held for as long as the descriptor is open. `already_exists` names the process that has it.
Result<FileDescriptor> lock_state_directory(const std::string& directory);

// Drawn when the directory is first used; not 0. For the one who holds its lock.
Result<std::uint64_t> number_of_state_directory(const std::string& directory);

// Not 0, and exact in every JSON reader.
std::uint64_t draw_number();

}  // namespace larder::cache
