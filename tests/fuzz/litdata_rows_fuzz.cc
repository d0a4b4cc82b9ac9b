// Any bytes as a LitData chunk that ends in an Arrow table: once with as many samples expected as it claims, once with
// any. Whatever is accepted lies inside the file, in order, in blocks that have all samples and a schema.

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "cache/dataset/index_litdata_rows.h"
#include "cache/protocol/claims.h"
#include "tests/support/memory_source.h"

namespace larder::cache {
namespace {

void index(std::string_view file, std::uint32_t expected_samples, const BlockGoal& goal) {
    if (expected_samples == 0) return;  // an index.json's chunks without samples are left out
    test::MemoryReader reader(file);
    IndexedObject object{.path = "c", .size_bytes = file.size()};
    const auto indexed = index_row_chunk(reader, expected_samples, goal, object,
                                         [](std::uint64_t, std::uint64_t) { return Result<void>{}; });
    if (!indexed) {
        LARDER_ASSERT(!indexed.error().message.empty() && object.block_details.empty());
        return;
    }
    LARDER_ASSERT(object.block_details.size() == object.blocks.size() && object.samples.empty());
    std::uint64_t samples = 0;
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < object.blocks.size(); ++i) {
        const DatasetContent::Block& block = object.blocks[i];
        LARDER_ASSERT(block.offset >= end && protocol::lies_within(block.offset, block.length, file.size()));
        LARDER_ASSERT(block.length > 0 && block.sample_count > 0);
        LARDER_ASSERT(object.block_details[i].size() > 8 && object.block_details[i].size() <= file.size());
        end = block.offset + block.length;
        samples += block.sample_count;
    }
    LARDER_ASSERT(samples == expected_samples);
}

}  // namespace
}  // namespace larder::cache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    // Exactly sized, so that a read past the end is detected.
    const std::vector<char> bytes(data, data + size);
    const std::string_view file(bytes.data(), bytes.size());
    std::uint32_t claimed = 0;
    if (size >= sizeof claimed) std::memcpy(&claimed, data, sizeof claimed);
    using larder::protocol::BlockTarget;
    larder::cache::index(file, claimed, {.target = BlockTarget::sample, .bytes = 0});
    larder::cache::index(file, claimed, {.target = BlockTarget::bytes, .bytes = 4096});
    larder::cache::index(file, claimed + 1, {.target = BlockTarget::object, .bytes = 0});
    return 0;
}
