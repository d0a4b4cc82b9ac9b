#include "cache/protocol/arrow_file.h"

#include <algorithm>
#include <string>

#include "cache/protocol/claims.h"
#include "cache/protocol/flatbuffer.h"
#include "cache/protocol/little_endian.h"

namespace larder::protocol {
namespace {

// Slots of the footer's table.
constexpr std::uint64_t kFooterDictionaries = 2;
constexpr std::uint64_t kFooterBatches = 3;

constexpr std::uint32_t kMessageStart = 0xffffffff;
constexpr std::uint64_t kBatchPlaceBytes = 24;
constexpr std::uint64_t kMessageAlignment = 8;

std::unexpected<Error> arrow_error(std::uint64_t offset, const std::string& what) {
    return fail(ErrorCode::corrupt, "at offset " + std::to_string(offset) + ": " + what);
}

}  // namespace

Result<std::uint64_t> arrow_footer_bytes(std::span<const std::byte> tail, std::uint64_t file_bytes) {
    const auto magic = tail.last(kArrowMagic.size());
    if (!std::ranges::equal(magic, std::as_bytes(std::span(kArrowMagic)))) {
        return arrow_error(file_bytes - kArrowMagic.size(),
                           "the Arrow file does not end with ARROW1: it is cut off, or "
                           "a stream of Arrow, which is not supported");
    }
    const auto length = load<std::int32_t>(tail);
    const std::uint64_t bytes = length < 0 ? 0 : static_cast<std::uint64_t>(length);
    if (bytes == 0 || bytes > kArrowFooterBytesMax ||
        !lies_within(kArrowSchemaOffset, bytes + kArrowTailBytes, file_bytes)) {
        return arrow_error(file_bytes - kArrowTailBytes, "an Arrow file of " + std::to_string(file_bytes) +
                                                             " bytes cannot have a footer of " +
                                                             std::to_string(length) + " bytes");
    }
    return bytes;
}

Result<std::vector<ArrowBatch>> parse_arrow_footer(std::span<const std::byte> footer, std::uint64_t footer_offset) {
    const auto bad = [&] {
        return arrow_error(footer_offset, "the footer of the Arrow file, which begins here, is damaged");
    };
    const Flatbuffer walk(footer);
    const auto root = walk.root();
    if (!root) return bad();
    if (const auto dictionaries = walk.slot(*root, kFooterDictionaries)) {
        const auto items = walk.items(*dictionaries, kBatchPlaceBytes);
        if (!items) return bad();
        if (!items->empty()) {
            return fail(ErrorCode::unsupported, "the Arrow file has dictionaries, which are not supported");
        }
    }
    const auto blocks = walk.slot(*root, kFooterBatches);
    const auto items = blocks ? walk.items(*blocks, kBatchPlaceBytes) : std::nullopt;
    if (!items) return bad();
    std::vector<ArrowBatch> batches;
    batches.reserve(items->size() / kBatchPlaceBytes);
    std::uint64_t end = kArrowSchemaOffset + kArrowMessageHeadBytes;
    for (auto left = *items; !left.empty(); left = left.subspan(kBatchPlaceBytes)) {
        const auto offset = load<std::uint64_t>(left);
        const auto head_bytes = load<std::int32_t>(left, 8);
        const auto body_bytes = load<std::uint64_t>(left, 16);
        if (offset < end || offset % kMessageAlignment != 0 ||
            head_bytes < static_cast<std::int32_t>(kArrowMessageHeadBytes) ||
            !lies_within(offset, static_cast<std::uint64_t>(head_bytes), footer_offset) ||
            !lies_within(offset + static_cast<std::uint64_t>(head_bytes), body_bytes, footer_offset)) {
            return arrow_error(footer_offset, "the footer of the Arrow file, which begins here, has batch " +
                                                  std::to_string(batches.size()) + " at offset " +
                                                  std::to_string(offset) + " with " + std::to_string(head_bytes) +
                                                  " and " + std::to_string(body_bytes) +
                                                  " bytes, which is not behind the one before it and within the file");
        }
        batches.push_back({.offset = offset, .bytes = static_cast<std::uint64_t>(head_bytes) + body_bytes});
        end = offset + batches.back().bytes;
    }
    return batches;
}

Result<std::uint64_t> arrow_schema_bytes(std::span<const std::byte> head, std::uint64_t end) {
    const auto length = load<std::int32_t>(head, 4);
    if (load<std::uint32_t>(head) != kMessageStart || length <= 0) {
        return arrow_error(kArrowSchemaOffset, "the Arrow file has no schema here");
    }
    const std::uint64_t bytes = kArrowMessageHeadBytes + static_cast<std::uint64_t>(length);
    if (bytes > kArrowSchemaBytesMax) {
        return fail(ErrorCode::unsupported, "the schema of the Arrow file has " + std::to_string(bytes) +
                                                " bytes; at most " + std::to_string(kArrowSchemaBytesMax) +
                                                " are read");
    }
    if (!lies_within(kArrowSchemaOffset, bytes, end)) {
        return arrow_error(kArrowSchemaOffset, "the schema of the Arrow file has " + std::to_string(bytes) +
                                                   " bytes, but what follows it begins at " + std::to_string(end));
    }
    return bytes;
}

}  // namespace larder::protocol
