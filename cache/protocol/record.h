#pragma once

// The self-describing form of a block, the same in a session's slot and in a disk segment: a 64-byte RecordHeader, then
// the payload, then padding up to the segment's alignment. The header names the block and carries its own CRC32C and
// the payload's, so that a segment can be scanned without an index and no block can be mistaken for another.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace larder::protocol {

inline constexpr std::uint32_t kRecordMagic = 0x4b4c424c;  // "LBLK"

struct RecordHeader {
    std::uint32_t magic;
    std::uint32_t header_crc;  // CRC32C of this header with header_crc = 0
    std::uint64_t dataset_id;
    std::uint32_t block_id;  // stable across versions of the dataset
    std::uint32_t payload_bytes;
    std::uint32_t payload_crc;
    std::uint32_t segment;  // the record's segment; 0 in a slot before admission
    std::uint32_t
        raw_bytes;  // 0: the payload is the block; else the payload is a zstd frame, and the block has this size
    std::uint32_t raw_crc;  // of the block, if the payload is compressed
    std::uint8_t reserved[24];
};
static_assert(sizeof(RecordHeader) == 64);
static_assert(std::endian::native == std::endian::little, "the formats are little-endian");

inline constexpr std::size_t kRecordHeaderBytes = sizeof(RecordHeader);

// The block that a compressed payload decompresses to.
struct CompressedBlock {
    std::uint32_t raw_bytes = 0;  // 0: not compressed
    std::uint32_t raw_crc = 0;
};

// The size of a record with this payload, padded to `alignment` (a power of two).
constexpr std::uint64_t record_bytes(std::uint64_t payload_bytes, std::uint64_t alignment) {
    return (kRecordHeaderBytes + payload_bytes + alignment - 1) & ~(alignment - 1);
}

RecordHeader make_record_header(std::uint64_t dataset_id, std::uint32_t block_id, std::uint32_t payload_bytes,
                                std::uint32_t payload_crc, std::uint32_t segment, CompressedBlock compressed = {});

// The header at the start of `bytes`; nullopt unless its magic and its own CRC are right and a compressed payload is
// smaller than its block.
std::optional<RecordHeader> read_record_header(std::span<const std::byte> bytes);

}  // namespace larder::protocol
