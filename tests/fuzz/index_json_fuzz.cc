// Any text as the index.json of MDS and of LitData, over a remote whose few files have the names that the corpus uses:
// everything indexed lies inside its object. The first byte selects the format.

#include <cstdint>

#include "base/assert.h"
#include "cache/dataset/detect_format.h"
#include "cache/dataset/index_litdata.h"
#include "cache/dataset/index_mds.h"
#include "cache/protocol/format_info.h"
#include "tests/support/foreign_format_files.h"

namespace {

// Returns a chunk with two samples, of 3 and 4 bytes, in one frame of 9 bytes.
std::string framed_chunk() {
    using larder::test::number_bytes;
    return std::string("LDFZ01\0\0", 8) + number_bytes<std::uint16_t>(1) + number_bytes<std::uint16_t>(0) +
           larder::test::numbers_bytes<std::uint32_t>({2, 256, 1, 0, 3, 7, 0, 2}) + number_bytes<std::uint64_t>(60) +
           larder::test::numbers_bytes<std::uint32_t>({9, 7}) + "the frame";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace larder;
    if (size == 0) return 0;
    test::MemorySource source;
    source.objects["index.json"] = std::string(reinterpret_cast<const char*>(data) + 1, size - 1);
    const std::string table = test::table_file({"first", "second"});
    source.objects["a"] = table;
    source.objects["b"] = table;
    // A zstd frame that holds `table`'s 27 bytes uncompressed: magic, 1-byte content size, one raw block.
    source.objects["f"] = framed_chunk();
    source.objects["z"] = std::string("\x28\xb5\x2f\xfd\x20\x1b\xd9\x00\x00", 9) + table;

    const auto listing = source.list({}, {});
    LARDER_ASSERT(listing && cache::detect_format(source, *listing));
    cache::DatasetContent content;
    std::vector<std::string> notes;
    const cache::BlockGoal goal{.target = protocol::BlockTarget::bytes, .bytes = 16};
    const bool mds = (data[0] & 1) != 0;
    const std::uint32_t tokens = mds ? 0 : data[0] >> 1;
    const auto indexed = mds ? cache::index_mds(source, goal, content, notes, {}, {})
                             : cache::index_litdata(source, goal, tokens, content, notes, {}, {});
    if (!indexed) return 0;
    LARDER_ASSERT(protocol::parse_format_info(std::as_bytes(std::span(content.format_info))));
    for (const auto& object : content.objects) {
        LARDER_ASSERT(source.objects.contains(std::string(content.name(object))));
        for (std::uint32_t i = 0; i < object.block_count; ++i) {
            const auto& block = content.blocks[object.first_block + i];
            LARDER_ASSERT(block.offset + block.length <= object.size_bytes && block.sample_count > 0);
            LARDER_ASSERT(block.raw_bytes <= protocol::kBlockBytesMax);
        }
    }
    return 0;
}
