#include "cache/protocol/record.h"

#include <cstring>

#include "base/hash.h"

namespace larder::protocol {
namespace {

std::uint32_t crc_of(RecordHeader header) {
    header.header_crc = 0;
    return crc32c(std::as_bytes(std::span(&header, 1)));
}

}  // namespace

RecordHeader make_record_header(std::uint64_t dataset_id, std::uint32_t block_id, std::uint32_t payload_bytes,
                                std::uint32_t payload_crc, std::uint32_t segment, CompressedBlock compressed) {
    RecordHeader header{.magic = kRecordMagic,
                        .header_crc = 0,
                        .dataset_id = dataset_id,
                        .block_id = block_id,
                        .payload_bytes = payload_bytes,
                        .payload_crc = payload_crc,
                        .segment = segment,
                        .raw_bytes = compressed.raw_bytes,
                        .raw_crc = compressed.raw_crc,
                        .reserved = {}};
    header.header_crc = crc_of(header);
    return header;
}

std::optional<RecordHeader> read_record_header(std::span<const std::byte> bytes) {
    if (bytes.size() < kRecordHeaderBytes) return std::nullopt;
    RecordHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    if (header.magic != kRecordMagic || header.header_crc != crc_of(header)) return std::nullopt;
    if (header.raw_bytes > 0 && header.payload_bytes >= header.raw_bytes) return std::nullopt;
    return header;
}

}  // namespace larder::protocol
