#pragma once

// ArrayRecord (google/array_record): records in groups, with an index. A file is Riegeli's
// (https://github.com/google/riegeli/blob/master/doc/riegeli_records_file_format.md):
//
//     each 65,536 bytes: a block header of 24 bytes, which is part of no chunk but may lie within one
//     a chunk: hash u64, bytes of its data u64, hash of its data u64, type u8, records u56, bytes of its records u64;
//         data; zeros up to one byte for each record
//     data of a simple chunk (type r): compression u8, bytes of the sizes varint, sizes, values. Sizes are a varint for
//         each record, values the records. If compressed, each of the two is its decompressed size varint, then a frame
//
// A group is a simple chunk. The footer is a chunk, too: a record of metadata, and then for each group a protocol
// buffer { place of its chunk = 1, bytes of its records = 2, records = 3 }. The chunk at the last multiple of 65,536
// that has one says where the footer is.
//
// zstd and no compression are read. Other compressions, and transposed chunks (type t), are refused by name. Hashes,
// which are HighwayHash, are not checked. Errors name the offset in the file and the reason. The functions are pure but
// for what they read.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "cache/protocol/byte_source.h"
#include "cache/protocol/decompressor.h"

namespace larder::protocol {

struct ArrayRecordGroup {
    std::uint64_t begin;  // in the file
    std::uint64_t end;    // where the next group or the footer begins
    std::uint64_t records;
    std::uint64_t decoded_bytes;  // of the records
};

// The size of a decoded block.
constexpr std::uint64_t array_record_raw_bytes(std::uint64_t records, std::uint64_t decoded_bytes) {
    return (records + 2) * sizeof(std::uint32_t) + decoded_bytes;
}

// Reads the index of a file: its groups, in the order of the file. Fails if the groups are of a kind that is not read;
// the first one says so.
Result<std::vector<ArrayRecordGroup>> read_array_record_index(ByteSource& file);

// Decodes a block, which is groups of a file with `records` records together. The block begins at `offset` in the file.
// Returns exactly `raw_bytes` bytes: the records as sample_table.h has samples, which `sample_in` finds by number.
Result<std::unique_ptr<std::byte[]>> decode_array_record(std::span<const std::byte> block, std::uint64_t offset,
                                                         std::uint32_t records, std::uint32_t raw_bytes,
                                                         Decompressor& decompressor);

}  // namespace larder::protocol
