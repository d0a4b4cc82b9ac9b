// Any bytes as an MDS shard or LitData chunk. Reading the table piece by piece gives the same samples as looking them
// up in the whole file. Every sample lies inside the file, and its fields lie inside the sample, one after the other.

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/assert.h"
#include "cache/protocol/sample_table.h"
#include "tests/support/memory_source.h"

namespace larder::protocol {
namespace {

const std::vector<FormatColumn> kColumns[3] = {
    {{"a", "str", 0}, {"b", "bytes", 0}},
    {{"a", "int", 8}, {"b", "str", 0}, {"c", "uint16", 2}},
    {{"a", "int", 4}},
};

void split(std::span<const std::byte> sample) {
    for (const auto& columns : kColumns) {
        std::vector<std::span<const std::byte>> fields;
        if (!split_columns(sample, columns, fields)) continue;
        LARDER_ASSERT(fields.size() == columns.size());
        const std::byte* at = fields.front().data();
        for (const auto& field : fields) {
            LARDER_ASSERT(field.data() == at && at >= sample.data());
            at += field.size();
        }
        LARDER_ASSERT(at == sample.data() + sample.size());
    }
}

void read(std::string_view file) {
    const auto bytes = std::as_bytes(std::span(file));
    std::uint32_t count = 0;
    if (file.size() >= sizeof count) std::memcpy(&count, file.data(), sizeof count);
    test::MemoryReader reader(file);
    auto table = SampleTable::open(reader, count);
    LARDER_ASSERT(table || !sample_in(bytes, 0, count));
    if (!table) return;
    std::uint64_t end = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
        const auto extent = table->next();
        if (!extent) return;
        LARDER_ASSERT(extent->offset >= end && extent->bytes <= file.size() - extent->offset);
        end = extent->offset + extent->bytes;
        const auto sample = sample_in(bytes, i, count);
        LARDER_ASSERT(sample && sample->data() == bytes.data() + extent->offset && sample->size() == extent->bytes);
        split(*sample);
    }
    LARDER_ASSERT(count == 0 || end == file.size());
    LARDER_ASSERT(!sample_in(bytes, count, count));
}

}  // namespace
}  // namespace larder::protocol

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    // Exactly sized, so that a read past the end is detected.
    const std::vector<char> file(data, data + size);
    larder::protocol::read({file.data(), file.size()});
    larder::protocol::split(std::as_bytes(std::span(file)));
    return 0;
}
