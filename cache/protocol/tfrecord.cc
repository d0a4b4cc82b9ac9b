#include "cache/protocol/tfrecord.h"

#include <bit>
#include <string>

#include "base/hash.h"
#include "cache/protocol/claims.h"
#include "cache/protocol/little_endian.h"

namespace larder::protocol {
namespace {

constexpr std::uint32_t kMask = 0xa282ead8;
constexpr std::size_t kLengthBytes = 8;

std::unexpected<Error> record_error(std::uint64_t offset, const std::string& what) {
    return fail(ErrorCode::corrupt, "at offset " + std::to_string(offset) + ": " + what);
}

bool length_is_sound(std::span<const std::byte> head) {
    return masked_crc(head.first(kLengthBytes)) == load<std::uint32_t>(head, kLengthBytes);
}

// The compression that TensorFlow used, by its header (RFC 1952, RFC 1950); empty if neither.
std::string_view compression_of(std::span<const std::byte> bytes) {
    const auto first = std::to_integer<unsigned>(bytes[0]), second = std::to_integer<unsigned>(bytes[1]);
    if (first == 0x1f && second == 0x8b) return "gzip";
    if (first == 0x78 && (first << 8 | second) % 31 == 0) return "zlib";
    return {};
}

}  // namespace

std::uint32_t masked_crc(std::span<const std::byte> bytes) {
    return std::rotr(crc32c(bytes), 15) + kMask;
}

Result<std::optional<Tfrecord>> TfrecordReader::next() {
    const std::uint64_t file_bytes = source_->size_bytes();
    if (position_ == file_bytes) return std::nullopt;
    const std::uint64_t left = file_bytes - position_;
    if (left < kTfrecordOverheadBytes) {
        return record_error(position_, "the file ends " + std::to_string(left) + " bytes into a record");
    }
    auto head = source_->read(position_, kTfrecordHeadBytes);
    if (!head) return std::unexpected(head.error());
    if (!length_is_sound(*head)) {
        if (const auto compression = compression_of(*head); position_ == 0 && !compression.empty()) {
            return fail(ErrorCode::unsupported, "it is compressed with " + std::string(compression) +
                                                    ", so its records cannot be read on their own: unpack it");
        }
        return record_error(
            position_,
            "the length of a record does not match its checksum: the file is damaged, or is no TFRecord "
            "file");
    }
    const auto data_bytes = load<std::uint64_t>(*head);
    if (!lies_within(kTfrecordOverheadBytes, data_bytes, left)) {
        return record_error(position_, "a record of " + std::to_string(data_bytes) +
                                           " bytes goes past the end of the file, which has " +
                                           std::to_string(file_bytes) + " bytes");
    }
    const Tfrecord record{.offset = position_, .bytes = data_bytes + kTfrecordOverheadBytes};
    position_ += record.bytes;
    return record;
}

Result<std::span<const std::byte>> record_data(std::span<const std::byte> record) {
    if (record.size() < kTfrecordOverheadBytes) {
        return record_error(0, "a record has at least 16 bytes, this one " + std::to_string(record.size()));
    }
    if (!length_is_sound(record)) return record_error(0, "the length of the record does not match its checksum");
    const std::size_t data_bytes = record.size() - kTfrecordOverheadBytes;
    if (load<std::uint64_t>(record) != data_bytes) {
        return record_error(0, "the record says it has " + std::to_string(load<std::uint64_t>(record)) +
                                   " bytes, not " + std::to_string(data_bytes));
    }
    const auto data = record.subspan(kTfrecordHeadBytes, data_bytes);
    if (masked_crc(data) != load<std::uint32_t>(record, kTfrecordHeadBytes + data_bytes)) {
        return record_error(kTfrecordHeadBytes, "the data of the record does not match its checksum");
    }
    return data;
}

}  // namespace larder::protocol
