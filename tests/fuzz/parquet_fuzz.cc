// Any bytes as the footer of a Parquet file, with all columns and with the first one chosen. Row groups lie in the file
// one after the other, and the footer that a client gets of them parses to the same chunks.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/assert.h"
#include "cache/protocol/parquet.h"

namespace larder::protocol {
namespace {

constexpr std::uint64_t kDataEnd = std::uint64_t{1} << 40;

void check_row_groups(const ParquetFooter& footer) {
    std::uint64_t end = kParquetMagic.size();
    for (const ParquetRowGroup& group : footer.row_groups) {
        LARDER_ASSERT(group.row_count > 0 && group.begin >= end);
        LARDER_ASSERT(group.begin < group.end && group.end <= kDataEnd);
        for (const ParquetChunk& chunk : group.chunks) {
            if (!chunk.is_chosen) continue;
            LARDER_ASSERT(chunk.bytes > 0 && chunk.offset >= group.begin && chunk.bytes <= group.end - chunk.offset);
        }
        end = group.end;
    }
}

void check_client_footer(const ParquetFooter& footer, std::span<const std::string> columns) {
    if (footer.row_groups.empty()) return;
    // The parser wants the magic before the first chunk; a block has none.
    const std::uint64_t block_offset = footer.row_groups.front().begin - kParquetMagic.size();
    const std::string details = encode_row_groups(footer.row_groups, block_offset);
    const auto bytes_of = [](const std::string& text) { return std::as_bytes(std::span(text)); };
    const auto file = parquet_footer_file(bytes_of(footer.head), bytes_of(details), 1);
    LARDER_ASSERT(file.has_value());
    const auto file_bytes = bytes_of(*file);
    const auto length = parquet_footer_bytes(file_bytes.last(kParquetTailBytes), file->size());
    LARDER_ASSERT(length.has_value());
    const auto again = parse_parquet_footer(file_bytes.subspan(kParquetMagic.size(), *length), kDataEnd, columns);
    LARDER_ASSERT(again.has_value() && again->schema == footer.schema && again->head == footer.head);
    LARDER_ASSERT(again->row_groups.size() == footer.row_groups.size());
    for (std::size_t i = 0; i < footer.row_groups.size(); ++i) {
        const ParquetRowGroup& before = footer.row_groups[i];
        const ParquetRowGroup& after = again->row_groups[i];
        LARDER_ASSERT(after.row_count == before.row_count && after.begin == before.begin - block_offset);
        LARDER_ASSERT(after.end - after.begin == before.end - before.begin);
        LARDER_ASSERT(after.chunks.size() == before.chunks.size());
    }
}

void read(std::span<const std::byte> bytes, std::span<const std::string> columns) {
    const auto footer = parse_parquet_footer(bytes, kDataEnd, columns);
    if (!footer) return;
    check_row_groups(*footer);
    check_client_footer(*footer, columns);
    if (columns.empty() && !footer->columns.empty()) read(bytes, std::span(footer->columns).first(1));
}

}  // namespace
}  // namespace larder::protocol

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    larder::protocol::read(bytes, {});
    if (size >= larder::protocol::kParquetTailBytes) {
        (void)larder::protocol::parquet_footer_bytes(bytes.last(larder::protocol::kParquetTailBytes), size);
    }
    return 0;
}
