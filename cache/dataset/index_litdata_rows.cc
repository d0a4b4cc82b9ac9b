#include "cache/dataset/index_litdata_rows.h"

#include <algorithm>
#include <string_view>

#include "base/units.h"
#include "cache/protocol/arrow_file.h"
#include "cache/protocol/claims.h"
#include "cache/protocol/little_endian.h"
#include "cache/protocol/manifest.h"

namespace larder::cache {
namespace {

using protocol::ArrowBatch;
using protocol::BlockTarget;
using protocol::load;

constexpr std::string_view kRowsMagic("LDARW01\0", 8);
constexpr std::uint64_t kRowsTailBytes = sizeof(std::uint32_t) + 8;
constexpr std::uint64_t kOffsetBytes = sizeof(std::uint32_t);
constexpr std::uint64_t kRowsPerBatch = 256;
// Most footers, and most schemas, are smaller: one request reads the whole.
constexpr std::uint64_t kArrowFooterReadBytes = std::uint64_t{64} << 10;
constexpr std::uint64_t kSchemaReadBytes = std::uint64_t{16} << 10;

// The place of the Arrow file in the chunk.
struct ArrowPlace {
    std::uint64_t begin;
    std::uint64_t bytes;
};

Result<ArrowPlace> find_arrow_file(std::span<const std::byte> tail, std::uint64_t chunk_bytes, std::uint64_t samples) {
    const auto bytes = load<std::uint32_t>(tail.last(kRowsTailBytes));
    const std::uint64_t table_bytes = (samples + 2) * kOffsetBytes;
    if (samples > chunk_bytes / kOffsetBytes || table_bytes + kRowsTailBytes > chunk_bytes ||
        bytes > chunk_bytes - table_bytes - kRowsTailBytes ||
        bytes < protocol::kArrowSchemaOffset + protocol::kArrowTailBytes) {
        return fail(ErrorCode::corrupt, "at offset " + std::to_string(chunk_bytes - kRowsTailBytes) + ": a chunk of " +
                                            std::to_string(chunk_bytes) + " bytes with " + std::to_string(samples) +
                                            " samples cannot end in an Arrow file of " + std::to_string(bytes) +
                                            " bytes");
    }
    return ArrowPlace{.begin = chunk_bytes - kRowsTailBytes - bytes, .bytes = bytes};
}

Result<void> check_sample_count(ObjectReader& chunk, std::uint64_t expected_samples) {
    const auto head = chunk.read(0, kOffsetBytes);
    if (!head) return std::unexpected(head.error());
    const auto samples = load<std::uint32_t>(*head);
    if (samples == expected_samples) return {};
    return fail(ErrorCode::corrupt, "at offset 0: it holds " + std::to_string(samples) +
                                        " samples, but its index says " + std::to_string(expected_samples));
}

Result<std::vector<ArrowBatch>> read_batches(ObjectReader& chunk, const ArrowPlace& place) {
    const std::uint64_t end = place.begin + place.bytes;
    const std::uint64_t first_bytes = std::min(place.bytes, kArrowFooterReadBytes);
    auto read = chunk.read(end - first_bytes, first_bytes);
    if (!read) return std::unexpected(read.error());
    const auto footer_bytes = protocol::arrow_footer_bytes(read->last(protocol::kArrowTailBytes), place.bytes);
    if (!footer_bytes) return std::unexpected(footer_bytes.error());
    const std::uint64_t footer_and_tail = *footer_bytes + protocol::kArrowTailBytes;
    if (footer_and_tail > first_bytes) {
        read = chunk.read(end - footer_and_tail, footer_and_tail);
        if (!read) return std::unexpected(read.error());
    }
    return protocol::parse_arrow_footer(read->last(footer_and_tail).first(*footer_bytes),
                                        place.bytes - footer_and_tail);
}

// Returns the schema's message. It lies before `limit` in the Arrow file.
Result<std::string> read_schema(ObjectReader& chunk, const ArrowPlace& place, std::uint64_t limit) {
    const std::uint64_t begin = place.begin + protocol::kArrowSchemaOffset;
    const std::uint64_t bytes_max = limit - protocol::kArrowSchemaOffset;
    auto read = chunk.read(begin, std::min(bytes_max, kSchemaReadBytes));
    if (!read) return std::unexpected(read.error());
    const auto bytes = protocol::arrow_schema_bytes(*read, limit);
    if (!bytes) return std::unexpected(bytes.error());
    if (*bytes > read->size()) {
        read = chunk.read(begin, *bytes);
        if (!read) return std::unexpected(read.error());
    }
    return std::string(reinterpret_cast<const char*>(read->data()), *bytes);
}

// Returns the number of batches, from the first of `batches` on, that become one block.
std::size_t count_for_block(std::span<const ArrowBatch> batches, const BlockGoal& goal) {
    if (goal.target == BlockTarget::sample) return 1;
    std::size_t count = 1;
    for (; count < batches.size(); ++count) {
        const std::uint64_t end = batches[count - 1].offset + batches[count - 1].bytes;
        if (batches[count].offset != end) break;  // the job reads a block's messages one after the other
        if (goal.target == BlockTarget::object) continue;
        if (end + batches[count].bytes - batches.front().offset > goal.bytes) break;
    }
    return count;
}

}  // namespace

Result<bool> has_litdata_rows(ObjectReader& chunk) {
    if (chunk.size_bytes() < kRowsTailBytes) return false;
    const auto end = chunk.read(chunk.size_bytes() - kRowsMagic.size(), kRowsMagic.size());
    if (!end) return std::unexpected(end.error());
    return std::ranges::equal(*end, std::as_bytes(std::span(kRowsMagic)));
}

Result<void> index_row_chunk(ObjectReader& chunk, std::uint64_t expected_samples, const BlockGoal& goal,
                             IndexedObject& object, const ObjectProgress& progress) {
    const std::uint64_t chunk_bytes = chunk.size_bytes();
    const auto has_rows = has_litdata_rows(chunk);
    if (!has_rows) return std::unexpected(has_rows.error());
    if (!*has_rows) {
        return fail(ErrorCode::corrupt,
                    "it does not end in an Arrow table, although the dataset's first chunk does: it is cut off, or the "
                    "dataset mixes chunks with and without tables, which is not supported");
    }
    if (auto checked = check_sample_count(chunk, expected_samples); !checked) return checked;
    const auto tail = chunk.read(chunk_bytes - kRowsTailBytes, kRowsTailBytes);
    if (!tail) return std::unexpected(tail.error());
    const auto place = find_arrow_file(*tail, chunk_bytes, expected_samples);
    if (!place) return std::unexpected(place.error());
    const auto in_table = [&](const Error& error) {
        return std::unexpected(error.within("its Arrow file, which begins at " + std::to_string(place->begin)));
    };
    const auto batches = read_batches(chunk, *place);
    if (!batches) return in_table(batches.error());
    if (batches->size() != (expected_samples + kRowsPerBatch - 1) / kRowsPerBatch) {
        return fail(ErrorCode::corrupt, "its Arrow file has " + std::to_string(batches->size()) +
                                            " batches; LitData writes one for every " + std::to_string(kRowsPerBatch) +
                                            " of its " + std::to_string(expected_samples) + " samples");
    }
    const auto schema = read_schema(chunk, *place, batches->front().offset);
    if (!schema) return in_table(schema.error());

    std::uint64_t rows_left = expected_samples;
    for (std::span<const ArrowBatch> left(*batches); !left.empty();) {
        const auto block = left.first(count_for_block(left, goal));
        left = left.subspan(block.size());
        const std::uint64_t bytes = block.back().offset + block.back().bytes - block.front().offset;
        if (bytes > protocol::kBlockBytesMax) {
            return fail(ErrorCode::unsupported, "a batch of its Arrow file, or all that --block object asks for, has " +
                                                    format_bytes(bytes) + "; a block has at most " +
                                                    format_bytes(protocol::kBlockBytesMax));
        }
        const std::uint64_t rows = std::min(rows_left, block.size() * kRowsPerBatch);
        rows_left -= rows;
        object.blocks.push_back({.offset = place->begin + block.front().offset,
                                 .length = static_cast<std::uint32_t>(bytes),
                                 .first_sample = 0,
                                 .sample_count = static_cast<std::uint32_t>(rows)});
    }
    const std::uint64_t details_bytes = object.blocks.size() * (sizeof(std::string) + schema->size());
    if (auto on = progress(chunk_bytes, index_bytes(object) + details_bytes); !on) return on;
    object.block_details.assign(object.blocks.size(), *schema);
    return {};
}

Result<void> index_litdata_rows(ObjectSource& source, std::span<const TableFile> files, const BlockGoal& goal,
                                DatasetContent& content, std::vector<std::string>& notes,
                                const IndexProgressCallback& progress, std::stop_token stop) {
    if (auto distinct = check_distinct(files); !distinct) return distinct;
    auto objects = index_in_parallel(
        files.size(),
        [&](std::size_t i, const ObjectProgress& step) -> Result<IndexedObject> {
            const TableFile& file = files[i];
            const auto chunk = open_named(source, file.path);
            if (!chunk) return std::unexpected(chunk.error());
            IndexedObject object{.path = file.path, .size_bytes = (*chunk)->size_bytes(), .tag = (*chunk)->tag()};
            if (auto indexed = index_row_chunk(**chunk, file.sample_count, goal, object, step); !indexed) {
                return std::unexpected(indexed.error().within(file.path));
            }
            return object;
        },
        progress, std::move(stop));
    if (!objects) return std::unexpected(objects.error());
    content.samples_by_ordinal = true;
    return append_all(content, std::move(*objects), notes, source.description());
}

}  // namespace larder::cache
