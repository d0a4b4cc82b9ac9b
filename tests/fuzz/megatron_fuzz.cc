// Any bytes as the index of a Megatron dataset, for a .bin whose size the first two bytes give: documents lie in the
// .bin, in order and without overlap.

#include <cstdint>
#include <vector>

#include "base/assert.h"
#include "cache/protocol/megatron.h"
#include "tests/support/memory_source.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace larder;
    if (size < 2) return 0;
    const std::uint64_t bin_bytes = data[0] | data[1] << 8;
    const std::vector<char> idx(data + 2, data + size);
    test::MemoryReader source(std::string_view(idx.data(), idx.size()));
    auto index = protocol::MegatronIndex::open(source, bin_bytes);
    if (!index) return 0;
    LARDER_ASSERT(size_bytes(index->element()) > 0);
    std::uint64_t end = 0;
    std::uint64_t documents = 0;
    for (;;) {
        const auto document = index->next();
        if (!document) return 0;
        if (!*document) break;
        ++documents;
        LARDER_ASSERT((*document)->offset >= end && (*document)->bytes <= bin_bytes - (*document)->offset);
        LARDER_ASSERT((*document)->bytes % size_bytes(index->element()) == 0);
        end = (*document)->offset + (*document)->bytes;
    }
    LARDER_ASSERT(documents == index->document_count());
    return 0;
}
