#pragma once

// Lets one process at a time own a file: the kernel frees the lock when the process ends, however it ends.

#include <string>

#include "base/error.h"
#include "base/file.h"

namespace larder {

// Creates the file with `mode`, or gives an existing one this mode: whoever can open it can lock it. Locks it for as
// long as the descriptor is open, and writes this process's number to it. Returns `already_exists` when another process
// holds the lock; the message names that process by number. Between fork and exec, a child holds the lock too. If its
// parent is killed then, the file is locked but names a dead process. The calling thread waits for that to end, for at
// most 30 s. On a read-only file system an existing file is locked without writing the number.
Result<FileDescriptor> lock_file(const std::string& path, unsigned mode);

}  // namespace larder
