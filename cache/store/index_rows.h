#pragma once

// Keys and values of the index's LMDB databases, byte by byte as cache/store/index_environment.h describes them.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "base/hash.h"
#include "cache/store/stored_block.h"

namespace larder::cache {

static_assert(std::endian::native == std::endian::little);

// {dataset, segment, offset/64}; its prefixes are the keys and ranges of segments and datasets.
struct IndexKey {
    static constexpr std::size_t kDatasetBytes = 8;
    static constexpr std::size_t kSegmentBytes = 12;
    static constexpr std::size_t kBlockBytes = 16;

    IndexKey(std::uint64_t dataset_id, std::uint32_t segment, std::uint32_t offset_units) {
        dataset_id = __builtin_bswap64(dataset_id);
        segment = __builtin_bswap32(segment);
        offset_units = __builtin_bswap32(offset_units);
        std::memcpy(bytes, &dataset_id, 8);
        std::memcpy(bytes + 8, &segment, 4);
        std::memcpy(bytes + 12, &offset_units, 4);
    }
    unsigned char bytes[kBlockBytes];
};

inline std::uint32_t index_key_number(const unsigned char* bytes) {
    std::uint32_t number;
    std::memcpy(&number, bytes, sizeof number);
    return __builtin_bswap32(number);
}

struct BlockRow {
    std::uint32_t block_id;
    std::uint32_t payload_bytes;
    std::uint32_t payload_crc;
    std::uint32_t crc;
};
static_assert(sizeof(BlockRow) == 16);

// The row of a block whose payload is compressed.
struct CompressedBlockRow {
    std::uint32_t block_id;
    std::uint32_t payload_bytes;
    std::uint32_t payload_crc;
    std::uint32_t raw_bytes;
    std::uint32_t crc;
};
static_assert(sizeof(CompressedBlockRow) == 20);

struct SegmentRow {
    std::uint64_t size_bytes;
    std::uint32_t alignment;
    std::uint32_t sealed;
    std::uint32_t reserved;
    std::uint32_t crc;
};
static_assert(sizeof(SegmentRow) == 24);

struct StateRow {
    std::uint32_t value;
    std::uint32_t crc;
};
static_assert(sizeof(StateRow) == 8);

// The CRC of a row, which is the row's last field.
template <typename Row>
std::uint32_t row_crc(std::span<const unsigned char> key, const Row& row) {
    const auto value = std::as_bytes(std::span(&row, 1));
    return crc32c(value.first(sizeof(Row) - sizeof row.crc), crc32c(std::as_bytes(key)));
}

// The row, if it has the right length and CRC.
template <typename Row>
std::optional<Row> read_row(std::span<const unsigned char> key, std::span<const unsigned char> value) {
    if (value.size() != sizeof(Row)) return std::nullopt;
    Row row;
    std::memcpy(&row, value.data(), sizeof row);
    if (row.crc != row_crc(key, row)) return std::nullopt;
    return row;
}

// A block row of either kind, if it is valid. raw_bytes is 0 if the block is not compressed.
inline std::optional<CompressedBlockRow> read_block_row(std::span<const unsigned char> key,
                                                        std::span<const unsigned char> value) {
    if (value.size() == sizeof(CompressedBlockRow)) {
        const auto compressed = read_row<CompressedBlockRow>(key, value);
        return compressed && compressed->payload_bytes < compressed->raw_bytes ? compressed : std::nullopt;
    }
    const auto row = read_row<BlockRow>(key, value);
    if (!row) return std::nullopt;
    return CompressedBlockRow{row->block_id, row->payload_bytes, row->payload_crc, 0, 0};
}

inline constexpr unsigned char kNextSegmentKey[] = {'n', 'e', 'x', 't', '_', 's', 'e', 'g', 'm', 'e', 'n', 't'};

}  // namespace larder::cache
