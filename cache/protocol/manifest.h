#pragma once

// The immutable binary index of one dataset version: the objects of the remote, the blocks of each object, and the
// samples of each block. A manifest is one file, which the daemon and every client map read-only and use in place:
// opening costs the same for ten samples and ten million. All integers are little-endian.
//
//   [ManifestHeader, 4096 bytes] [ManifestObject x object_count] [ManifestBlock x block_count]
//   [ManifestSample x sample_count] [ManifestClass x class_count] [CRC32C u32 x block_count] [names]
//
// The flags say which arrays are present. With kOneSamplePerObject (raw), object i is also block i and sample i, and
// the block and sample arrays are absent: 32 bytes a sample in all. Otherwise a block costs 24 bytes and a sample 8.
// With kSamplesByOrdinal (MDS and LitData with compressed shards), a block is a whole object, and the sample array is
// absent: a sample is found in the decompressed block by its ordinal among the block's samples. Datasets of rows have
// this flag, too, and block details (`has_rows`): a block is one or more row groups of Parquet, or batches of rows of a
// LitData chunk, and a sample is a row of them. So has ArrayRecord: a block is groups of records, and decodes to a
// table of them (sample_table.h). With kBlockChecksums, the array of CRC32Cs of the blocks' bytes on the
// remote is present. With kCompressedBlocks, blocks may be zstd frames, and sample extents refer to the decompressed
// bytes. Other format details that clients need are the format info (format_info.h), stored among the names. Datasets
// of rows also store block details there, a text for each block, without which Arrow cannot decode it: the end of each
// u64, counted from the end of this table, and then the texts. Objects are sorted by path (bytewise). The blocks of an
// object are consecutive, and so are the samples of a block. Every object has at least one block; every block has at
// least one sample and one byte.
//
// Accessors are O(1) unless stated, never allocate, and may be called from any thread; the caller keeps indices in
// range. `open` validates the header and the bounds of every array, so that no accessor reads outside the mapping,
// whatever the arrays contain, and no block is longer than block_bytes_max. `check` validates every value. It costs a
// CRC and one pass over the file, so the daemon calls it once, before it hands out a manifest.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace larder::protocol {

inline constexpr std::uint32_t kManifestLayout = 2;
inline constexpr std::uint32_t kManifestLayoutOldest = 1;  // without checksums and sample_format
inline constexpr std::size_t kManifestHeaderBytes = 4096;
inline constexpr std::size_t kLargestBlocksEntries = 33;
inline constexpr std::uint32_t kOneSamplePerObject = 1;
inline constexpr std::uint32_t kSamplesByOrdinal = 2;
inline constexpr std::uint32_t kBlockChecksums = 4;
inline constexpr std::uint32_t kCompressedBlocks = 8;
inline constexpr std::uint32_t kNoLabel = 0xffffffff;
inline constexpr std::uint32_t kNoLabelStored = 0xffffff;            // in ManifestObject's 24 bits
inline constexpr std::uint32_t kBlockBytesMax = (1u << 30) - 65536;  // a block fits the largest segment

enum class Format : std::uint32_t {
    raw = 1,
    webdataset = 2,
    mds = 3,
    litdata = 4,
    tfrecord = 5,
    megatron = 6,
    larder = 7,  // packed.h
    parquet = 8,
    array_record = 9
};
inline constexpr std::array kFormats{Format::raw,     Format::webdataset, Format::mds,
                                     Format::litdata, Format::tfrecord,   Format::megatron,
                                     Format::larder,  Format::parquet,    Format::array_record};
enum class BlockTarget : std::uint32_t { sample = 1, object = 2, bytes = 3 };

std::string_view name(Format format);
// True if samples of this format can be stored in packed files: their bytes divide into fields with only the format
// info.
bool may_be_packed(Format samples);

struct ManifestHeader {
    char magic[8];             // "LARDERMF"
    std::uint32_t layout;      // kManifestLayout
    std::uint32_t header_crc;  // CRC32C of the header's 4096 bytes with header_crc = 0
    std::uint64_t file_bytes;
    std::uint32_t body_crc;  // CRC32C of everything after the header
    std::uint32_t flags;
    std::uint64_t dataset_id;  // the same for all versions of a dataset
    std::uint64_t version;     // 1, 2, ...
    Format format;
    BlockTarget block_target;
    std::uint64_t block_target_bytes;  // for BlockTarget::bytes
    std::int64_t created_unix_ns;
    std::uint64_t object_count;
    std::uint64_t block_count;
    std::uint64_t sample_count;
    std::uint64_t class_count;
    std::uint64_t total_bytes;   // sum of block lengths: the dataset's size
    std::uint64_t block_id_end;  // every block_id of every version so far is below it
    std::uint32_t block_bytes_max;
    std::uint32_t samples_per_block_max;
    std::uint64_t objects_offset;
    std::uint64_t blocks_offset;
    std::uint64_t samples_offset;
    std::uint64_t classes_offset;
    std::uint64_t names_offset;
    std::uint64_t names_bytes;
    std::uint64_t url_offset;  // into names
    std::uint64_t url_bytes;
    // [i]: total bytes of the 2^i largest blocks, so that a client can size its slots for any window without a scan.
    std::uint64_t largest_blocks_bytes[kLargestBlocksEntries];
    std::uint64_t format_info_offset;    // into names; see format_info.h
    std::uint64_t format_info_bytes;     // 0: none
    std::uint64_t checksums_offset;      // with kBlockChecksums
    Format sample_format;                // for Format::larder: how the bytes of a sample divide; else 0
    std::uint32_t content_crc;           // CRC32C of the body with block ids of 0 and without checksums; 0: not known
    std::uint64_t block_details_offset;  // into names. Parquet: encode_row_groups of parquet.h; LitData: schemas
    std::uint64_t block_details_bytes;   // 0: none
};
static_assert(sizeof(ManifestHeader) <= kManifestHeaderBytes);

struct ManifestObject {
    std::uint64_t size_bytes;
    std::int64_t mtime_ns;
    std::uint64_t name_end_and_label;  // low 40 bits: end of its name in names (the name begins where the previous
                                       // object's ends, or at 0); high 24 bits: class index, 0xffffff for none
    std::uint32_t first_block;         // index of its first block
    std::uint32_t first_block_id;      // its blocks have consecutive ids from here, kept while the object is unchanged
};
static_assert(sizeof(ManifestObject) == 32);

struct ManifestBlock {
    std::uint64_t offset;  // in the object
    std::uint32_t length;
    std::uint32_t object;
    std::uint32_t first_sample;
    std::uint32_t raw_bytes;  // 0: not compressed; else zstd, with this size once decompressed
};
static_assert(sizeof(ManifestBlock) == 24);

struct ManifestSample {
    std::uint32_t offset;  // in the block
    std::uint32_t length;
};
static_assert(sizeof(ManifestSample) == 8);

struct ManifestClass {
    std::uint64_t name_offset;  // into names
    std::uint64_t name_bytes;
};

struct Object {
    std::string_view path;  // relative to the dataset's URL
    std::uint64_t size_bytes;
    std::int64_t mtime_ns;
    std::uint32_t label;  // class index, or kNoLabel
    std::uint32_t first_block;
    std::uint32_t block_count;
    std::uint32_t first_block_id;
};

struct Block {
    std::uint32_t object;
    std::uint32_t length;
    std::uint64_t offset;
    std::uint32_t first_sample;
    std::uint32_t sample_count;
    std::uint32_t block_id;
    std::uint32_t raw_bytes;  // 0: not compressed
};

// The place of a sample in its block.
struct SampleExtent {
    std::uint32_t offset;
    std::uint32_t length;
};

// True if a path is relative and has only plain components, so that it cannot leave the dataset's root.
bool is_plain_path(std::string_view path);

class Manifest {
public:
    Manifest() = default;

    // Maps the manifest behind `fd` (which may be closed afterwards) or at `path`.
    static Result<Manifest> open(int fd);
    static Result<Manifest> open(const std::string& path);

    const ManifestHeader& header() const { return *header_; }
    std::uint64_t object_count() const { return header_->object_count; }
    std::uint32_t block_count() const { return static_cast<std::uint32_t>(header_->block_count); }
    std::uint64_t sample_count() const { return header_->sample_count; }
    std::uint64_t total_bytes() const { return header_->total_bytes; }
    bool samples_by_ordinal() const { return (header_->flags & kSamplesByOrdinal) != 0; }
    // True if samples are rows, which Arrow decodes. They have no bytes of their own.
    bool has_rows() const { return samples_by_ordinal() && header_->block_details_bytes > 0; }
    // True if blocks may be compressed (raw_bytes > 0).
    bool has_compressed_blocks() const { return (header_->flags & (kSamplesByOrdinal | kCompressedBlocks)) != 0; }
    bool has_checksums() const { return (header_->flags & kBlockChecksums) != 0; }
    // The rule that divides a sample's bytes into fields.
    Format sample_format() const {
        return header_->format == Format::larder ? header_->sample_format : header_->format;
    }
    std::string_view url() const;
    // The blob of format_info.h; empty for formats that need none.
    std::span<const std::byte> format_info() const;
    // The block's text of the block details; empty if there is none.
    std::span<const std::byte> block_details(std::uint32_t index) const;

    Object object(std::uint64_t index) const;
    Block block(std::uint32_t index) const;
    std::uint32_t block_bytes(std::uint32_t index) const;
    std::uint32_t block_id(std::uint32_t index) const;
    // The CRC32C of the block's bytes on the remote; only with has_checksums.
    std::uint32_t block_checksum(std::uint32_t index) const { return checksums_[index]; }
    // With samples_by_ordinal: the extent of the whole block, in O(log block_count).
    SampleExtent sample(std::uint64_t index) const;
    std::string_view class_name(std::uint64_t index) const;
    std::vector<std::string> class_names() const;

    // Returns a hash that is the same on every node that has indexed the same objects, in the same versions, from the
    // same URL, and divided them in the same way. The dataset's id, the number of the version and block ids are each
    // node's own. Manifests without content_crc also need the same block ids. O(1).
    std::uint64_t content_hash() const;

    // The block that holds a sample. O(log block_count), O(1) for raw.
    std::uint32_t block_of_sample(std::uint64_t sample) const;

    // The object with this path. O(log object_count): objects are sorted by path.
    std::optional<std::uint64_t> find_object(std::string_view path) const;

    // An upper bound of the total bytes of any `count` distinct blocks; exact if all blocks have one length.
    std::uint64_t blocks_bytes_max(std::uint64_t count) const;

    // Reads every array: CRC, order, bounds, sums. O(file).
    Result<void> check() const;

private:
    std::string_view path(std::uint64_t object) const;
    bool one_sample_per_object() const { return (header_->flags & kOneSamplePerObject) != 0; }

    friend class ManifestCheck;

    Mapping mapping_;
    const ManifestHeader* header_ = nullptr;
    std::span<const ManifestObject> objects_;
    std::span<const ManifestBlock> blocks_;
    std::span<const ManifestSample> samples_;
    std::span<const ManifestClass> classes_;
    std::span<const std::uint32_t> checksums_;
    std::string_view names_;
};

}  // namespace larder::protocol
