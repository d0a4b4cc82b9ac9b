#pragma once

// The first page of a disk segment. It names the segment and its dataset, so that a segment directory can be read
// without an index. Records follow from byte 4096 on.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace larder::cache {

inline constexpr std::size_t kSegmentHeaderBytes = 4096;
inline constexpr std::uint32_t kSegmentLayout = 1;

struct SegmentHeader {
    char magic[8];         // "LARDERSG"
    std::uint32_t layout;  // kSegmentLayout
    std::uint32_t crc;     // CRC32C of this header with crc = 0
    std::uint64_t dataset_id;
    std::uint64_t size_bytes;  // of the whole file, header page included
    std::uint32_t segment;
    std::uint32_t alignment;  // of records: a power of two, at least 64
};
static_assert(sizeof(SegmentHeader) == 40);

// Fills `page`, of kSegmentHeaderBytes.
void write_segment_header(std::span<std::byte> page, std::uint64_t dataset_id, std::uint32_t segment,
                          std::uint64_t size_bytes, std::uint32_t alignment);

// The header at the start of `page`, if its magic, layout, CRC and alignment are valid.
std::optional<SegmentHeader> read_segment_header(std::span<const std::byte> page);

// "<directory>/0000002a.segment".
std::string segment_path(const std::string& directory, std::uint32_t segment);

}  // namespace larder::cache
