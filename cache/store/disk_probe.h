#pragma once

// Finds out what a segment directory's file system can do, with a short-lived file. Blocking.

#include <cstdint>
#include <string>

#include "base/error.h"

namespace larder::cache {

struct DiskProbe {
    std::uint32_t alignment = 4096;  // of offsets and lengths of direct I/O, and so of records
    bool direct = false;             // O_DIRECT works
};

// Makes the directory and its parents if missing.
Result<DiskProbe> probe_disk(const std::string& directory);

}  // namespace larder::cache
