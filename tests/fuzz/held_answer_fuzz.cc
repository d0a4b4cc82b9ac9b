// Any bytes as a peer's answer about the blocks that it holds, or about its digests. An accepted answer has no bits or
// one bit for each block asked about, or digests of such blocks, and encodes to the same bytes again.

#include <cstdint>
#include <cstring>
#include <span>

#include "base/assert.h"
#include "cache/peers/digests_answer.h"
#include "cache/peers/held_answer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    std::uint32_t block_count = 0;
    if (size < sizeof block_count) return 0;
    std::memcpy(&block_count, data, sizeof block_count);
    const auto answer = std::as_bytes(std::span(data, size)).subspan(sizeof block_count);
    if (const auto digests = larder::cache::decode_digests(answer, block_count)) {
        for (const auto& [block, digest] : digests->blocks) LARDER_ASSERT(block < block_count && digest.is_known());
        const std::string again = larder::cache::encode_digests(*digests, block_count);
        LARDER_ASSERT(again.size() == answer.size() && std::memcmp(again.data(), answer.data(), again.size()) == 0);
    }
    const auto held = larder::cache::decode_held(answer, block_count);
    if (!held) return 0;
    LARDER_ASSERT(!held->bits || held->bits->size() == (std::size_t{block_count} + 7) / 8);
    const std::span<const std::uint8_t> bits = held->bits ? *held->bits : std::span<const std::uint8_t>();
    const std::string again = larder::cache::encode_held(held->state, held->room_bytes, block_count, bits);
    LARDER_ASSERT(again.size() == answer.size() && std::memcmp(again.data(), answer.data(), again.size()) == 0);
    return 0;
}
