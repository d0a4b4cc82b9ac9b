// Any bytes as a block of ArrayRecord, and as the part of a file before its end, whose first bytes say where the file's
// index is. Groups that are accepted lie in the file one after the other. A block decodes to what the index says or not
// at all.

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "cache/protocol/array_record.h"
#include "cache/protocol/sample_table.h"
#include "tests/support/array_record_files.h"

namespace larder::protocol {
namespace {

constexpr std::uint64_t kRawBytesMax = std::uint64_t{16} << 20;

void decode(std::span<const std::byte> block, std::uint64_t offset, std::uint64_t records, std::uint64_t raw_bytes) {
    if (raw_bytes > kRawBytesMax) return;
    Decompressor decompressor;
    const auto raw = decode_array_record(block, offset, static_cast<std::uint32_t>(records),
                                         static_cast<std::uint32_t>(raw_bytes), decompressor);
    if (!raw) return;
    for (std::uint32_t i = 0; i < records; ++i) {
        LARDER_ASSERT(sample_in({raw->get(), raw_bytes}, i, static_cast<std::uint32_t>(records)).has_value());
    }
}

void read(std::string_view begin, std::uint64_t footer) {
    test::RiegeliFile end;
    end.add_records({test::array_record_postscript(footer)});
    end.fill_stride();
    std::string file(begin);
    file.resize((file.size() / 65536 + 1) * 65536);
    file += end.bytes();
    test::MemoryReader reader(file);
    const auto groups = read_array_record_index(reader);
    if (!groups) return;
    std::uint64_t at = 64;
    for (const ArrayRecordGroup& group : *groups) {
        LARDER_ASSERT(group.begin >= at && group.end > group.begin && group.end <= footer && group.records > 0);
        at = group.end;
        decode(std::as_bytes(std::span(file)).subspan(group.begin, group.end - group.begin), group.begin, group.records,
               array_record_raw_bytes(group.records, group.decoded_bytes));
    }
}

}  // namespace
}  // namespace larder::protocol

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    // Exactly sized, so that a read past the end is detected.
    const std::vector<char> bytes(data, data + size);
    if (size < 8) return 0;
    std::uint32_t first = 0;
    std::uint32_t second = 0;
    std::memcpy(&first, data, sizeof first);
    std::memcpy(&second, data + sizeof first, sizeof second);
    const std::string_view rest(bytes.data() + 8, bytes.size() - 8);
    larder::protocol::read({bytes.data(), bytes.size()}, first);
    larder::protocol::decode(std::as_bytes(std::span(rest)), first % 131072, second % 1024, second / 1024);
    return 0;
}
