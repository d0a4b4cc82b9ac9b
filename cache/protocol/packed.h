#pragma once

// Packed files, NAME.larder: Larder's own layout of samples, made by `larder dataset pack`. Samples keep the bytes they
// had in the format they come from, so that their fields are found as before; what changes is how they lie: in blocks
// that begin at multiples of 4096 bytes, are stored as they are or as one zstd frame, and hold samples that each begin
// at a multiple of 16 bytes. Blocks of samples that are all of one length (windows of tokens) have no row for each
// sample.
//
//   [PackedHeader, 64 bytes] [zeros up to 4096] [blocks, zeros between them] [PackedBlock x block_count]
//   [PackedSample x sum of sample_count of blocks whose sample_bytes is 0] [format info]
//
// The part after the blocks is the index; it ends with the file. All integers are little-endian, all CRCs CRC32C.
//
// `read_packed_index` takes a header and an index through a ByteSource and checks every value, so that no extent leads
// outside its block and no block outside the file; errors say what is wrong with which block. Plain values.

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
// Of a file: blocks of samples of one length say much with few bytes, and readers list all samples.
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
    std::uint64_t row_count;    // of PackedSample
    std::uint32_t block_count;  // at least 1
    std::uint32_t block_bytes;  // to which blocks were filled, before compression; 0: one sample a block
    std::uint32_t format_info_bytes;
    std::uint32_t reserved;
};
static_assert(sizeof(PackedHeader) == 64);

struct PackedBlock {
    std::uint64_t offset;        // in the file
    std::uint32_t stored_bytes;  // in the file
    std::uint32_t raw_bytes;     // 0: as it is; else a zstd frame with so many bytes once decompressed
    std::uint32_t sample_count;
    std::uint32_t sample_bytes;  // of each; 0: the rows say
    std::uint32_t checksum;      // of the stored bytes
    std::uint32_t reserved;
};
static_assert(sizeof(PackedBlock) == 32);

using PackedSample = ManifestSample;  // in its block, once decompressed

struct PackedIndex {
    Format sample_format = Format::webdataset;
    std::uint32_t block_bytes = 0;
    std::vector<PackedBlock> blocks;
    std::vector<PackedSample> samples;  // of all blocks, one after the other
    std::string format_info;            // of the manifest; empty where the format has none
};

// From where one sample of this length begins to where the next does.
constexpr std::uint64_t packed_stride(std::uint64_t sample_bytes) {
    return (sample_bytes + kPackedSampleAlignment - 1) / kPackedSampleAlignment * kPackedSampleAlignment;
}

// With its header_crc set.
PackedHeader sealed(PackedHeader header);

Result<PackedIndex> read_packed_index(ByteSource& file);

}  // namespace larder::protocol
