#pragma once

// One block as the index and the scan of a segment know it. Offsets are in units of 64 bytes, the smallest alignment of
// a record, so that they fit in 32 bits.

#include <cstdint>
#include <vector>

namespace larder::cache {

inline constexpr std::uint64_t kOffsetUnitBytes = 64;

struct StoredBlock {
    // Stands for the id of a block that was dropped while its record stays in the segment. The scan of the segment's
    // tail starts behind such a record, so that it does not bring the block back.
    static constexpr std::uint32_t kDroppedId = 0xffffffff;
    // Stands for the id of a record that the disk could not write or read. Nothing is written there again while the
    // segment lives.
    static constexpr std::uint32_t kRetiredId = 0xfffffffe;

    std::uint32_t offset_units = 0;  // of the record in its segment
    std::uint32_t block_id = 0;
    std::uint32_t payload_bytes = 0;
    std::uint32_t payload_crc = 0;
    std::uint32_t raw_bytes = 0;  // of the block if the payload is compressed, else 0

    std::uint64_t offset() const { return offset_units * kOffsetUnitBytes; }
    bool is_dropped() const { return block_id == kDroppedId; }
    bool is_retired() const { return block_id == kRetiredId; }
    bool operator==(const StoredBlock&) const = default;
};
static_assert(sizeof(StoredBlock) == 20);

// A disk segment and its blocks, ascending in offset.
struct StoredSegment {
    std::uint32_t id = 0;
    std::uint32_t alignment = 0;
    std::uint64_t size_bytes = 0;
    bool sealed = false;
    std::vector<StoredBlock> blocks;
};

}  // namespace larder::cache
