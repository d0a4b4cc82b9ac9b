#pragma once

// Apache Parquet: a file is row groups, each of which holds one chunk of bytes for every column, and a footer, which
// says where the chunks are (https://parquet.apache.org/docs/file-format/, parquet.thrift in apache/parquet-format).
// This parser reads the footer only, and of the footer only what finding and decoding chunks needs. Chunks are decoded
// by Arrow in the training job.
//
// A client gets no part of the footer as the file has it. `encode_row_groups` writes checked numbers into a
// footer of its own, which tells Arrow about one block: offsets count from the block's first byte. Only the schema and
// Arrow's own copy of it ("ARROW:schema") are the file's bytes. Columns that were not chosen stay in that footer, with
// chunks of no bytes, so that the schema holds unchanged; Arrow must not be asked for them.
//
// The footer is Thrift's compact protocol. The parser walks it in place, in time linear in its length, whatever it
// claims. The functions are pure. Errors say at which byte of the footer and why.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace larder::protocol {

inline constexpr std::string_view kParquetMagic = "PAR1";
inline constexpr std::size_t kParquetTailBytes = 8;  // the footer's length u32 and the magic end a file
inline constexpr std::uint32_t kParquetFooterBytesMax = 64u << 20;

// One column's bytes in a row group.
struct ParquetChunk {
    std::uint64_t offset = 0;  // in the file
    std::uint64_t bytes = 0;
    std::uint64_t raw_bytes = 0;  // decompressed
    std::uint64_t value_count = 0;
    std::uint32_t type = 0;
    std::uint32_t codec = 0;
    bool is_chosen = false;
};

struct ParquetRowGroup {
    std::uint64_t row_count = 0;
    std::uint64_t begin = 0;  // in the file: where the first chosen chunk begins
    std::uint64_t end = 0;    // where the last chosen chunk ends
    std::vector<ParquetChunk> chunks;
};

struct ParquetFooter {
    std::vector<std::string> columns;         // the chosen ones, in the order of the file
    std::string schema;                       // as in the footer; the same in all files of a dataset
    std::string arrow_fields;                 // see arrow_schema.h; the same in all files of a dataset
    std::string head;                         // what all blocks of the dataset share, for parquet_footer_file
    std::vector<ParquetRowGroup> row_groups;  // without those that have no rows; in the order of their bytes
};

// Returns the length of the footer, from the last kParquetTailBytes bytes of a file of `file_bytes` bytes.
Result<std::uint32_t> parquet_footer_bytes(std::span<const std::byte> tail, std::uint64_t file_bytes);

// Parses the footer, which begins at `footer_offset` in the file. `columns`: names of columns at the top of the schema;
// empty: all. A chosen column that is a struct, a list or a map is chosen with all that is in it.
Result<ParquetFooter> parse_parquet_footer(std::span<const std::byte> footer, std::uint64_t footer_offset,
                                           std::span<const std::string> columns);

// Encodes row groups of one file for the block that begins at `block_offset`.
std::string encode_row_groups(std::span<const ParquetRowGroup> row_groups, std::uint64_t block_offset);

// Returns a Parquet file that is only a footer. It describes the row groups that `encode_row_groups` encoded. `head` is
// that of ParquetFooter.
Result<std::string> parquet_footer_file(std::span<const std::byte> head, std::span<const std::byte> row_groups,
                                        std::uint64_t row_count);

}  // namespace larder::protocol
