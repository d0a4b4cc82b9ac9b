#pragma once

// The memory one session shares with the daemon: its slots and the memory segments it was given, all mapped read-only.
// It counts the blocks that lie in each segment and in all, so that a dropped segment is unmapped as soon as nothing
// reads it, and so that blocks outlive a session that broke: their memory stays mapped until the last is let go.

#include <cstdint>
#include <memory>
#include <vector>

#include "base/file.h"

namespace larder::detail {

struct MappedSegment {
    std::uint32_t id = 0;
    std::uint64_t bytes = 0;
    FileDescriptor fd;  // until it is mapped
    Mapping mapping;
    std::uint32_t blocks = 0;  // held in it
    bool dropped = false;
};

struct SessionMemory {
    Mapping slots;
    std::vector<std::unique_ptr<MappedSegment>> segments;  // by id
    std::uint64_t blocks = 0;                              // held in any of this
};

}  // namespace larder::detail
