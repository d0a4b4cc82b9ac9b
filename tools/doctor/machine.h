#pragma once

// Checks of the kernel and of this process's limits. Each tries the thing itself: kernel versions are printed, never
// compared.

#include <optional>
#include <string_view>

#include "tools/doctor/finding.h"

namespace larder::doctor {

Finding check_kernel();

// Makes a ring and reads a file through it, as larderd does. `daemon_io` and `daemon_reason`: what the daemon says of
// its own I/O; empty: no daemon answers.
Finding check_io_uring(std::string_view daemon_io, std::string_view daemon_reason);

// Registers as much memory as a loader's session has by default. `daemon_pid` 0: no daemon answers.
Finding check_memlock(int daemon_pid);

// Backs shared memory with huge pages, as the daemon does.
Finding check_huge_pages();

// Returns the limit on locked memory in the text of /proc/PID/limits, in bytes: the largest number if there is none.
std::optional<std::uint64_t> locked_memory_limit(std::string_view limits);

}  // namespace larder::doctor
