// Any bytes as a TFRecord file, and again with the checksums repaired. Records follow each other without
// gaps to the end, or an error says why not, and a record's data lies inside the record.

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/assert.h"
#include "cache/protocol/tfrecord.h"
#include "tests/support/memory_source.h"

namespace larder::protocol {
namespace {

void read(std::string_view file) {
    test::MemoryReader source(file);
    TfrecordReader reader(source);
    std::uint64_t end = 0;
    for (;;) {
        const auto record = reader.next();
        if (!record) return;
        if (!*record) break;
        LARDER_ASSERT((*record)->offset == end && (*record)->bytes >= kTfrecordOverheadBytes);
        LARDER_ASSERT((*record)->bytes <= file.size() - end);
        const auto bytes = std::as_bytes(std::span(file)).subspan(end, (*record)->bytes);
        if (const auto data = record_data(bytes)) {
            LARDER_ASSERT(data->data() == bytes.data() + kTfrecordHeadBytes);
            LARDER_ASSERT(data->size() == bytes.size() - kTfrecordOverheadBytes);
        }
        end += (*record)->bytes;
    }
    LARDER_ASSERT(end == file.size());
}

// Repairs the checksums of each record. A record ends where its length says.
void repair(std::vector<char>& file) {
    for (std::size_t at = 0; file.size() - at >= kTfrecordOverheadBytes;) {
        std::uint64_t bytes = 0;
        std::memcpy(&bytes, file.data() + at, sizeof bytes);
        const auto crc = masked_crc(std::as_bytes(std::span(file)).subspan(at, sizeof bytes));
        std::memcpy(file.data() + at + sizeof bytes, &crc, sizeof crc);
        at += kTfrecordHeadBytes;
        if (bytes > file.size() - at - sizeof crc) return;
        const auto data_crc = masked_crc(std::as_bytes(std::span(file)).subspan(at, bytes));
        std::memcpy(file.data() + at + bytes, &data_crc, sizeof data_crc);
        at += bytes + sizeof data_crc;
    }
}

}  // namespace
}  // namespace larder::protocol

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    std::vector<char> file(data, data + size);
    larder::protocol::read({file.data(), file.size()});
    larder::protocol::repair(file);
    larder::protocol::read({file.data(), file.size()});
    (void)larder::protocol::record_data(std::as_bytes(std::span(file)));
    return 0;
}
