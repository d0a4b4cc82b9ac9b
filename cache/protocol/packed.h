#pragma once

// Packed files, NAME.larder: Larder's own layout of samples, made by `larder dataset pack`. Samples keep the bytes of
// their original format, so their fields are found as before. Only the arrangement changes: blocks begin at multiples
// of 4096 bytes and are stored plain or as one zstd frame; samples begin at multiples of 16 bytes in their block. A
// block whose samples all have one length (windows of tokens) has no row per sample.
//
//   [PackedHeader, 64 bytes] [zeros up to 4096] [blocks, zeros between them] [PackedBlock x block_count]
//   [PackedSample x sum of sample_count of blocks whose sample_bytes is 0] [format info]
//
// The part after the blocks is the index; it extends to the end of the file. All integers are little-endian, all CRCs
// are CRC32C.
//
// `read_packed_index` reads the header and the index through a ByteSource and checks every value, so that no extent
// leaves its block and no block leaves the file. Errors name the block. Plain values.

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/protocol/byte_source.h"
#include "cache/protocol/manifest.h"

namespace larder::protocol {

inline constexpr std::uint32_t kPackedLayout = 1;
inline constexpr std::uint64_t kPackedBlockAlignment = 4096;
inline constexpr std::uint32_t kPackedSampleAlignment = 16;
inline constexpr std::uint64_t kPackedIndexBytesMax = std::uint64_t{256} << 20;
// Per file. Needed because readers list all samples, and a few bytes can declare many samples of one length.
inline constexpr std::uint32_t kPackedSamplesMax = 1u << 22;
inline constexpr char kPackedMagic[8] = {'L', 'A', 'R', 'D', 'E', 'R', 'P', 'K'};

struct PackedHeader {
    char magic[8];
    std::uint32_t layout;      // kPackedLayout
    std::uint32_t header_crc;  // of these 64 bytes, with this field 0
    std::uint64_t index_offset;
    std::uint64_t index_bytes;
    std::uint32_t index_crc;
    Format sample_format;       // see may_be_packed
    std::uint64_t row_count;    // number of PackedSample rows
    std::uint32_t block_count;  // at least 1
    std::uint32_t block_bytes;  // target size of blocks before compression; 0: one sample a block
    std::uint32_t format_info_bytes;
    std::uint32_t reserved;
};
static_assert(sizeof(PackedHeader) == 64);

struct PackedBlock {
    std::uint64_t offset;        // in the file
    std::uint32_t stored_bytes;  // in the file
    std::uint32_t raw_bytes;     // 0: plain; else a zstd frame of this size once decompressed
    std::uint32_t sample_count;
    std::uint32_t sample_bytes;  // of each sample; 0: the rows say
    std::uint32_t checksum;      // of the stored bytes
    std::uint32_t reserved;
};
static_assert(sizeof(PackedBlock) == 32);

using PackedSample = ManifestSample;  // in the decompressed block

struct PackedIndex {
    Format sample_format = Format::webdataset;
    std::uint32_t block_bytes = 0;
    std::vector<PackedBlock> blocks;
    std::vector<PackedSample> samples;  // of all blocks, in order
    std::string format_info;            // the manifest's; empty if the format has none
};

// The distance between the starts of two consecutive samples of this length.
constexpr std::uint64_t packed_stride(std::uint64_t sample_bytes) {
    return (sample_bytes + kPackedSampleAlignment - 1) / kPackedSampleAlignment * kPackedSampleAlignment;
}

// Returns the header with its header_crc set.
PackedHeader sealed(PackedHeader header);

Result<PackedIndex> read_packed_index(ByteSource& file);

}  // namespace larder::protocol
