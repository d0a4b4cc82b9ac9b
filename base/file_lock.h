#pragma once

// One process a file: a lock that the kernel frees with the process that took it, whatever its end.

#include <string>

#include "base/error.h"
#include "base/file.h"

namespace larder {

// Makes the file, readable as `mode` says, holds its lock for as long as the descriptor is open, and writes the number
// of this process to it. `already_exists` when another process has it, which the message names by number. A process
// that was killed while it started a child leaves the lock to that child until it runs its own program: while the
// file names a process that is no more, the calling thread waits, for at most 30 s.
Result<FileDescriptor> lock_file(const std::string& path, unsigned mode);

}  // namespace larder
