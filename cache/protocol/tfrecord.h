#pragma once

// TFRecord files: consecutive records, with nothing before, between or after them. A record is
//
//     data bytes u64, masked CRC of these 8 bytes u32, the data, masked CRC of the data u32      (little-endian)
//
// where a masked CRC is the CRC32C, rotated right by 15 bits, plus 0xa282ead8. Writers choose what the data means; most
// often it is a serialised tf.train.Example, which Python decodes (larder.decode).
//
// Source: TensorFlow's tensorflow/core/lib/io/record_writer.h and the page "TFRecord and tf.train.Example".
//
// TfrecordReader walks a file and reads only the 12 bytes before each record's data. `record_data` takes one whole
// record and verifies both checksums. Errors name the offset and the reason. A reader belongs to one thread.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/error.h"
#include "cache/protocol/byte_source.h"

namespace larder::protocol {

inline constexpr std::size_t kTfrecordHeadBytes = 12;
inline constexpr std::size_t kTfrecordOverheadBytes = 16;

std::uint32_t masked_crc(std::span<const std::byte> bytes);

struct Tfrecord {
    std::uint64_t offset;
    std::uint64_t bytes;  // with head and tail
};

class TfrecordReader {
public:
    explicit TfrecordReader(ByteSource& source) : source_(&source) {}
    // nullopt at the end of the file.
    Result<std::optional<Tfrecord>> next();

private:
    ByteSource* source_;
    std::uint64_t position_ = 0;
};

// The data of a record, given all bytes of the record.
Result<std::span<const std::byte>> record_data(std::span<const std::byte> record);

}  // namespace larder::protocol
