#pragma once

// What a segment directory's file system can do, asked once by a short-lived file. Blocking.

#include <cstdint>
#include <string>

#include "base/error.h"

namespace larder::cache {

struct DiskProbe {
    std::uint32_t alignment = 4096;  // of offsets and lengths of direct I/O, and so of records
    bool direct = false;             // O_DIRECT works
};

// Makes the directory, with its parents, if it is missing.
Result<DiskProbe> probe_disk(const std::string& directory);

}  // namespace larder::cache
