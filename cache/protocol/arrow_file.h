#pragma once

// Arrow's IPC file format (https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format):
//
//     "ARROW1\0\0", a message with the schema, messages with a batch of rows each, an end marker,
//     the footer (a flatbuffer), its length i32, "ARROW1"
//
// A message is ffffffff, the length of its metadata i32, the metadata (a flatbuffer), and a body. The footer says where
// each batch lies, in { offset i64, bytes of the metadata with the eight bytes before it i32, 4 bytes of padding, bytes
// of the body i64 }. A batch can be decoded with nothing but the schema's message. Files with dictionaries, which are
// messages of their own, are refused.
//
// These functions find batches and the schema. Arrow decodes both in the training job. The functions are pure. Errors
// say at which byte of the file and why.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace larder::protocol {

inline constexpr std::string_view kArrowMagic = "ARROW1";
inline constexpr std::uint64_t kArrowSchemaOffset = 8;
inline constexpr std::uint64_t kArrowMessageHeadBytes = 8;
inline constexpr std::uint64_t kArrowTailBytes = 10;  // the footer's length and the magic
inline constexpr std::uint64_t kArrowFooterBytesMax = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kArrowSchemaBytesMax = std::uint64_t{1} << 20;

// A message with a batch of rows.
struct ArrowBatch {
    std::uint64_t offset;  // in the file
    std::uint64_t bytes;   // at least 1
};

// Returns the length of the footer, from the last kArrowTailBytes bytes of a file of `file_bytes` bytes.
Result<std::uint64_t> arrow_footer_bytes(std::span<const std::byte> tail, std::uint64_t file_bytes);

// Returns the batches, in the order of the file. The footer begins at `footer_offset` in the file.
Result<std::vector<ArrowBatch>> parse_arrow_footer(std::span<const std::byte> footer, std::uint64_t footer_offset);

// Returns the length of the schema's message, from its first kArrowMessageHeadBytes bytes. The first batch, or the
// footer if there is none, begins at `end`.
Result<std::uint64_t> arrow_schema_bytes(std::span<const std::byte> head, std::uint64_t end);

}  // namespace larder::protocol
