#include "cache/protocol/array_record.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "cache/protocol/claims.h"
#include "cache/protocol/little_endian.h"

namespace larder::protocol {
namespace {

constexpr std::uint64_t kStrideBytes = 65536;
constexpr std::uint64_t kStrideHeadBytes = 24;
constexpr std::uint64_t kChunkHeadBytes = 40;
constexpr std::uint64_t kFirstGroupOffset = 64;  // after the block header and the signature, an empty chunk
constexpr std::uint64_t kFooterRawBytesMax = std::uint64_t{256} << 20;
constexpr std::uint64_t kPostscriptBytesMax = 1024;
constexpr std::uint64_t kPostscriptMagic = 0x71930e704fdae05e;
constexpr std::uint64_t kSizeVarintBytesMax = 10;
constexpr std::byte kUncompressed{0};
constexpr std::byte kZstd{'z'};

std::unexpected<Error> array_record_error(std::uint64_t offset, const std::string& what) {
    return fail(ErrorCode::corrupt, "at offset " + std::to_string(offset) + ": " + what);
}

// Takes a varint from the front of `bytes`; nullopt if there is none.
std::optional<std::uint64_t> take_varint(std::span<const std::byte>& bytes) {
    std::uint64_t value = 0;
    for (std::uint64_t i = 0; i < kSizeVarintBytesMax && i < bytes.size(); ++i) {
        const auto byte = std::to_integer<std::uint64_t>(bytes[i]);
        value |= (byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            bytes = bytes.subspan(i + 1);
            return value;
        }
    }
    return std::nullopt;
}

// Returns where `bytes` bytes of chunks end that begin at `at`, with the block headers that lie between.
std::uint64_t end_of(std::uint64_t at, std::uint64_t bytes) {
    const std::uint64_t in_stride = at % kStrideBytes;
    const std::uint64_t before = in_stride < kStrideHeadBytes ? 0 : in_stride - kStrideHeadBytes;  // of this stride
    constexpr std::uint64_t kPerStride = kStrideBytes - kStrideHeadBytes;
    const std::uint64_t position = before + bytes;
    if (bytes == 0) return at;
    // A chunk that ends with a stride ends before the next block header.
    const std::uint64_t strides = (position - 1) / kPerStride;
    return at - in_stride + strides * kStrideBytes + kStrideHeadBytes + (position - strides * kPerStride);
}

struct RiegeliChunk {
    char type = 0;
    std::uint64_t records = 0;
    std::uint64_t decoded_bytes = 0;
    std::uint64_t data_begin = 0;  // in the file
    std::uint64_t data_bytes = 0;
    std::uint64_t end = 0;
};

// Bytes of a file, from `begin` on.
struct FilePart {
    std::span<const std::byte> bytes;
    std::uint64_t begin;
};

// Copies a chunk's bytes from `at` on, without block headers, or returns them in place if there is none between.
// The range lies in the part.
std::span<const std::byte> chunk_bytes(const FilePart& part, std::uint64_t at, std::uint64_t count,
                                       std::vector<std::byte>& memory) {
    if (count == 0) return {};
    if (at % kStrideBytes < kStrideHeadBytes) at += kStrideHeadBytes - at % kStrideBytes;
    const std::uint64_t left = kStrideBytes - at % kStrideBytes;
    if (count <= left) return part.bytes.subspan(at - part.begin, count);
    memory.clear();
    memory.reserve(count);
    while (memory.size() < count) {
        if (at % kStrideBytes == 0) at += kStrideHeadBytes;
        const std::uint64_t piece = std::min(count - memory.size(), kStrideBytes - at % kStrideBytes);
        const auto found = part.bytes.subspan(at - part.begin, piece);
        memory.insert(memory.end(), found.begin(), found.end());
        at += piece;
    }
    return memory;
}

// `head`: the file from `at` on, at least kChunkHeadBytes and what block headers lie between.
Result<RiegeliChunk> parse_chunk_head(const FilePart& head, std::uint64_t at, std::uint64_t limit) {
    std::vector<std::byte> memory;
    const auto bytes = chunk_bytes(head, at, kChunkHeadBytes, memory);
    const auto data_bytes = load<std::uint64_t>(bytes, 8);
    const auto type_and_records = load<std::uint64_t>(bytes, 24);
    RiegeliChunk chunk{.type = static_cast<char>(type_and_records & 0xff),
                       .records = type_and_records >> 8,
                       .decoded_bytes = load<std::uint64_t>(bytes, 32),
                       .data_begin = end_of(at, kChunkHeadBytes),
                       .data_bytes = data_bytes};
    if (!lies_within(chunk.data_begin, data_bytes, limit) || end_of(chunk.data_begin, data_bytes) > limit) {
        return array_record_error(at, "the chunk that begins here has " + std::to_string(data_bytes) +
                                          " bytes of data, but must end before " + std::to_string(limit));
    }
    chunk.end = std::max(end_of(chunk.data_begin, data_bytes), end_of(at, chunk.records));
    return chunk;
}

// Sizes and values of a simple chunk, decompressed.
struct SimpleChunk {
    std::span<const std::byte> sizes;
    std::span<const std::byte> values;
    std::unique_ptr<std::byte[]> sizes_memory;
    std::unique_ptr<std::byte[]> values_memory;
};

Result<std::span<const std::byte>> decompress_part(std::span<const std::byte> part, std::byte compression,
                                                   std::uint64_t raw_bytes_max, std::uint64_t at,
                                                   Decompressor& decompressor, std::unique_ptr<std::byte[]>& memory) {
    if (compression == kUncompressed) return part;
    const auto raw_bytes = take_varint(part);
    if (!raw_bytes || *raw_bytes > raw_bytes_max || *raw_bytes > UINT32_MAX) {
        return array_record_error(at, "the chunk that begins here claims more decompressed bytes than it may have");
    }
    auto raw = decompressor.run(part, static_cast<std::uint32_t>(*raw_bytes));
    if (!raw) return std::unexpected(raw.error().within("the chunk at offset " + std::to_string(at)));
    memory = std::move(*raw);
    return std::span<const std::byte>(memory.get(), *raw_bytes);
}

Result<void> check_kind(const RiegeliChunk& chunk, std::uint64_t at) {
    if (chunk.type == 'r') return {};
    if (chunk.type == 't') {
        return fail(ErrorCode::unsupported, "at offset " + std::to_string(at) +
                                                ": its chunks are transposed, which is not supported: write it without "
                                                "the option transpose");
    }
    return array_record_error(at, "no group of records begins here");
}

Result<void> check_compression(std::byte compression, std::uint64_t at) {
    if (compression == kUncompressed || compression == kZstd) return {};
    const char letter = static_cast<char>(compression);
    const std::string name = letter == 'b' ? "brotli" : letter == 's' ? "snappy" : "an unknown method";
    return fail(ErrorCode::unsupported, "at offset " + std::to_string(at) + ": its chunks are compressed with " + name +
                                            "; only zstd and uncompressed chunks are read");
}

Result<SimpleChunk> open_simple_chunk(std::span<const std::byte> data, const RiegeliChunk& chunk, std::uint64_t at,
                                      Decompressor& decompressor) {
    if (data.empty()) return array_record_error(at, "the chunk that begins here has no data");
    const std::byte compression = data.front();
    if (auto known = check_compression(compression, at); !known) return std::unexpected(known.error());
    data = data.subspan(1);
    const auto sizes_bytes = take_varint(data);
    if (!sizes_bytes || *sizes_bytes > data.size()) {
        return array_record_error(at, "the sizes of the records in the chunk that begins here lie outside it");
    }
    SimpleChunk simple;
    const std::uint64_t sizes_max = chunk.records > UINT32_MAX ? UINT32_MAX : chunk.records * kSizeVarintBytesMax;
    const auto sizes =
        decompress_part(data.first(*sizes_bytes), compression, sizes_max, at, decompressor, simple.sizes_memory);
    if (!sizes) return std::unexpected(sizes.error());
    const auto values = decompress_part(data.subspan(*sizes_bytes), compression, chunk.decoded_bytes, at, decompressor,
                                        simple.values_memory);
    if (!values) return std::unexpected(values.error());
    if (values->size() != chunk.decoded_bytes) {
        return array_record_error(at, "the chunk that begins here has records of " + std::to_string(values->size()) +
                                          " bytes, but claims " + std::to_string(chunk.decoded_bytes));
    }
    simple.sizes = *sizes;
    simple.values = *values;
    return simple;
}

// Calls `visit` with the bytes of each record.
template <typename Visit>
Result<void> for_each_record(const SimpleChunk& simple, const RiegeliChunk& chunk, std::uint64_t at, Visit visit) {
    auto sizes = simple.sizes;
    auto values = simple.values;
    for (std::uint64_t i = 0; i < chunk.records; ++i) {
        const auto size = take_varint(sizes);
        if (!size || *size > values.size()) {
            return array_record_error(at,
                                      "record " + std::to_string(i) + " of the chunk that begins here lies outside it");
        }
        if (auto visited = visit(values.first(*size)); !visited) return visited;
        values = values.subspan(*size);
    }
    if (!sizes.empty() || !values.empty()) {
        return array_record_error(at, "the records of the chunk that begins here do not fill it");
    }
    return {};
}

// Reads the simple chunk at `at`, and calls `visit` with each of its records.
template <typename Visit>
Result<void> read_simple_chunk(ByteSource& file, std::uint64_t at, std::uint64_t raw_bytes_max, Visit visit) {
    const std::uint64_t file_bytes = file.size_bytes();
    const std::uint64_t head_end = end_of(at, kChunkHeadBytes);
    if (at >= file_bytes || head_end > file_bytes) return array_record_error(at, "the file ends before the chunk here");
    const auto head = file.read(at, head_end - at);
    if (!head) return std::unexpected(head.error());
    const auto chunk = parse_chunk_head({.bytes = *head, .begin = at}, at, file_bytes);
    if (!chunk) return std::unexpected(chunk.error());
    if (auto known = check_kind(*chunk, at); !known) return known;
    if (chunk->decoded_bytes > raw_bytes_max || chunk->data_bytes > 2 * raw_bytes_max ||
        chunk->records > raw_bytes_max) {
        return array_record_error(at, "the chunk that begins here is too large for what it is");
    }
    const auto data_end = end_of(chunk->data_begin, chunk->data_bytes);
    const auto read = file.read(chunk->data_begin, data_end - chunk->data_begin);
    if (!read) return std::unexpected(read.error());
    std::vector<std::byte> memory;
    const auto data =
        chunk_bytes({.bytes = *read, .begin = chunk->data_begin}, chunk->data_begin, chunk->data_bytes, memory);
    Decompressor decompressor;
    const auto simple = open_simple_chunk(data, *chunk, at, decompressor);
    if (!simple) return std::unexpected(simple.error());
    return for_each_record(*simple, *chunk, at, visit);
}

// The numbers in a protocol buffer that has no others. Those that are left out are 0.
struct ProtoNumbers {
    std::uint64_t first = 0;
    std::uint64_t second = 0;
    std::uint64_t third = 0;
};

std::optional<ProtoNumbers> parse_numbers(std::span<const std::byte> message) {
    ProtoNumbers numbers;
    while (!message.empty()) {
        const auto tag = take_varint(message);
        const auto value = take_varint(message);
        if (!tag || !value || (*tag & 7) != 0) return std::nullopt;
        if (*tag >> 3 == 1) numbers.first = *value;
        if (*tag >> 3 == 2) numbers.second = *value;
        if (*tag >> 3 == 3) numbers.third = *value;
    }
    return numbers;
}

Result<std::uint64_t> find_footer(ByteSource& file) {
    const std::uint64_t file_bytes = file.size_bytes();
    const std::uint64_t at = file_bytes / kStrideBytes * kStrideBytes;
    if (file_bytes < 2 * kStrideBytes || at != file_bytes) {
        return array_record_error(file_bytes,
                                  "the file ends here, but not with a whole block of 65536 bytes: it is cut off, or "
                                  "no ArrayRecord");
    }
    const std::uint64_t postscript = file_bytes - kStrideBytes;
    std::optional<ProtoNumbers> found;
    auto read = read_simple_chunk(file, postscript, kPostscriptBytesMax, [&](std::span<const std::byte> record) {
        found = parse_numbers(record);
        return Result<void>{};
    });
    if (!read) return std::unexpected(read.error());
    if (!found || found->second != kPostscriptMagic || found->first < kFirstGroupOffset || found->first >= postscript) {
        return array_record_error(postscript, "the end of an ArrayRecord file should say here where its index is");
    }
    return found->first;
}

Result<void> check_group(ByteSource& file, const ArrayRecordGroup& group) {
    const std::uint64_t bytes =
        std::min(group.end - group.begin, end_of(group.begin, kChunkHeadBytes + 1) - group.begin);
    const auto read = file.read(group.begin, bytes);
    if (!read) return std::unexpected(read.error());
    const FilePart part{.bytes = *read, .begin = group.begin};
    if (group.begin + bytes < end_of(group.begin, kChunkHeadBytes + 1)) {
        return array_record_error(group.begin, "no group of records begins here");
    }
    const auto chunk = parse_chunk_head(part, group.begin, group.end);
    if (!chunk) return std::unexpected(chunk.error());
    if (auto known = check_kind(*chunk, group.begin); !known) return known;
    std::vector<std::byte> memory;
    return check_compression(chunk_bytes(part, chunk->data_begin, 1, memory).front(), group.begin);
}

}  // namespace

Result<std::vector<ArrayRecordGroup>> read_array_record_index(ByteSource& file) {
    const auto footer = find_footer(file);
    if (!footer) return std::unexpected(footer.error());
    std::vector<ArrayRecordGroup> groups;
    bool is_metadata = true;
    auto read =
        read_simple_chunk(file, *footer, kFooterRawBytesMax, [&](std::span<const std::byte> record) -> Result<void> {
            if (std::exchange(is_metadata, false)) return {};
            const auto numbers = parse_numbers(record);
            const std::uint64_t least = groups.empty() ? kFirstGroupOffset : groups.back().begin + kChunkHeadBytes;
            if (!numbers || numbers->first < least || numbers->first >= *footer || numbers->third == 0) {
                return array_record_error(*footer,
                                          "the index of the file, which begins here, has no valid place for group " +
                                              std::to_string(groups.size()));
            }
            if (!groups.empty()) groups.back().end = numbers->first;
            groups.push_back(
                {.begin = numbers->first, .end = *footer, .records = numbers->third, .decoded_bytes = numbers->second});
            return {};
        });
    if (!read) return std::unexpected(read.error());
    for (const ArrayRecordGroup& group : groups) {
        const std::uint64_t bytes = group.end - group.begin;
        if (may_decompress_to(bytes, group.records) && may_decompress_to(bytes, group.decoded_bytes)) continue;
        return array_record_error(group.begin, "the group that begins here has " + std::to_string(bytes) +
                                                   " bytes, which cannot hold its " + std::to_string(group.records) +
                                                   " records of " + std::to_string(group.decoded_bytes) + " bytes");
    }
    if (!groups.empty()) {
        if (auto checked = check_group(file, groups.front()); !checked) return std::unexpected(checked.error());
    }
    return groups;
}

Result<std::unique_ptr<std::byte[]>> decode_array_record(std::span<const std::byte> block, std::uint64_t offset,
                                                         std::uint32_t records, std::uint32_t raw_bytes,
                                                         Decompressor& decompressor) {
    const FilePart part{.bytes = block, .begin = offset};
    const std::uint64_t block_end = offset + block.size();
    const std::uint64_t table_bytes = array_record_raw_bytes(records, 0);
    if (table_bytes > raw_bytes) return array_record_error(offset, "the block's records do not fit its size");
    auto raw = std::make_unique_for_overwrite<std::byte[]>(raw_bytes);
    const auto put_word = [&](std::uint64_t word, std::uint64_t value) {
        const auto number = static_cast<std::uint32_t>(value);
        std::memcpy(raw.get() + word * sizeof number, &number, sizeof number);
    };
    put_word(0, records);
    std::uint64_t next = 0;
    std::uint64_t end = table_bytes;
    std::vector<std::byte> memory;
    for (std::uint64_t at = offset; next < records;) {
        if (at >= block_end || end_of(at, kChunkHeadBytes) > block_end) {
            return array_record_error(at, "the block ends here, with " + std::to_string(next) + " of its " +
                                              std::to_string(records) + " records");
        }
        const auto chunk = parse_chunk_head(part, at, block_end);
        if (!chunk) return std::unexpected(chunk.error());
        if (chunk->type != 'p') {  // padding
            if (auto known = check_kind(*chunk, at); !known) return std::unexpected(known.error());
            if (chunk->records > records - next || chunk->decoded_bytes > raw_bytes - end) {
                return array_record_error(
                    at, "the chunk that begins here has more records than the index of the file says");
            }
            const auto data = chunk_bytes(part, chunk->data_begin, chunk->data_bytes, memory);
            const auto simple = open_simple_chunk(data, *chunk, at, decompressor);
            if (!simple) return std::unexpected(simple.error());
            auto added = for_each_record(*simple, *chunk, at, [&](std::span<const std::byte> record) {
                put_word(1 + next++, end);
                std::ranges::copy(record, raw.get() + end);
                end += record.size();
                return Result<void>{};
            });
            if (!added) return std::unexpected(added.error());
        }
        at = chunk->end;
    }
    if (end != raw_bytes) {
        return array_record_error(offset, "the block that begins here has " + std::to_string(end) +
                                              " bytes decoded, but the index of the file says " +
                                              std::to_string(raw_bytes));
    }
    put_word(1 + next, end);
    return raw;
}

}  // namespace larder::protocol
