// Any bytes as a LitData chunk of zstd frames: once with as many samples expected as it claims, once with any. Whatever
// is accepted lies inside the file, in order, with every sample inside its block, and takes no more memory than the
// file's own tables.

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "cache/dataset/framed_chunk.h"
#include "cache/protocol/claims.h"
#include "tests/support/memory_source.h"

namespace larder::cache {
namespace {

void index(std::string_view file, std::uint32_t expected_samples) {
    test::MemoryReader reader(file);
    IndexedObject object{.path = "c", .size_bytes = file.size()};
    const auto indexed = index_framed_chunk(reader, expected_samples, object,
                                            [](std::uint64_t, std::uint64_t) { return Result<void>{}; });
    LARDER_ASSERT(object.samples.size() * sizeof(std::uint32_t) <= file.size());
    if (!indexed) {
        LARDER_ASSERT(!indexed.error().message.empty());
        return;
    }
    LARDER_ASSERT(object.samples.size() + object.empty_samples == expected_samples);
    std::uint64_t next = 0;
    std::uint64_t end = 0;
    for (const DatasetContent::Block& block : object.blocks) {
        LARDER_ASSERT(block.offset >= end && protocol::lies_within(block.offset, block.length, file.size()));
        LARDER_ASSERT(block.first_sample == next && block.sample_count > 0);
        end = block.offset + block.length;
        std::uint64_t sample_end = 0;
        for (std::uint32_t i = 0; i < block.sample_count; ++i, ++next) {
            const protocol::ManifestSample& sample = object.samples.at(next);
            LARDER_ASSERT(sample.length > 0 && sample.offset == sample_end);
            sample_end += sample.length;
        }
        LARDER_ASSERT(sample_end == block.raw_bytes);
    }
    LARDER_ASSERT(next == object.samples.size());
}

}  // namespace
}  // namespace larder::cache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    // Exactly sized, so that a read past the end is detected.
    const std::vector<char> bytes(data, data + size);
    const std::string_view file(bytes.data(), bytes.size());
    std::uint32_t claimed = 0;
    if (size >= 16) std::memcpy(&claimed, data + 12, sizeof claimed);
    larder::cache::index(file, claimed);
    larder::cache::index(file, claimed + 1);
    return 0;
}
