#pragma once

// The memory that one session shares with the daemon: its slots and the memory segments it was sent, all mapped
// read-only. The blocks held in each segment and in all are counted. So a dropped segment is unmapped as soon as
// nothing reads it, and blocks outlive a broken session: their memory stays mapped until the last one is released.

#include <cstdint>
#include <memory>
#include <vector>

#include "base/file.h"

namespace larder::detail {

struct MappedSegment {
    std::uint32_t id = 0;
    std::uint64_t bytes = 0;
    FileDescriptor fd;  // until the segment is mapped
    Mapping mapping;
    std::uint32_t blocks = 0;  // held in this segment
    bool dropped = false;
};

struct ClientSessionMemory {
    Mapping slots;
    std::vector<std::unique_ptr<MappedSegment>> segments;  // by id
    std::uint64_t blocks = 0;                              // held in all of this memory
};

}  // namespace larder::detail
