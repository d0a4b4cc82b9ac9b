#include "cache/peers/held_answer.h"

#include <bit>
#include <cstring>

namespace larder::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "the answer is little-endian");

constexpr std::uint32_t kHeldMagic = 0x444c484c;  // "LHLD"

struct HeldHeader {
    std::uint32_t magic;
    std::uint32_t block_count;
    std::uint64_t instance;
    std::uint64_t changes;
    std::uint64_t room_bytes;
};
static_assert(sizeof(HeldHeader) == 32);

}  // namespace

std::size_t held_bytes_max(std::uint32_t block_count) {
    return sizeof(HeldHeader) + (std::size_t{block_count} + 7) / 8;
}

std::string encode_held(const HeldState& state, std::uint64_t room_bytes, std::uint32_t block_count,
                        std::span<const std::uint8_t> bits) {
    const HeldHeader header{.magic = kHeldMagic,
                            .block_count = block_count,
                            .instance = state.instance,
                            .changes = state.changes,
                            .room_bytes = room_bytes};
    std::string answer(sizeof header + bits.size(), '\0');
    std::memcpy(answer.data(), &header, sizeof header);
    if (!bits.empty()) std::memcpy(answer.data() + sizeof header, bits.data(), bits.size());
    return answer;
}

std::optional<HeldAnswer> decode_held(std::span<const std::byte> answer, std::uint32_t block_count) {
    HeldHeader header;
    if (answer.size() < sizeof header) return std::nullopt;
    std::memcpy(&header, answer.data(), sizeof header);
    if (header.magic != kHeldMagic || header.block_count != block_count) return std::nullopt;
    HeldAnswer held{
        .state = {.instance = header.instance, .changes = header.changes}, .room_bytes = header.room_bytes, .bits = {}};
    const auto bits = answer.subspan(sizeof header);
    if (bits.empty()) return held;
    if (bits.size() != (std::size_t{block_count} + 7) / 8) return std::nullopt;
    held.bits.emplace(bits.size());
    std::memcpy(held.bits->data(), bits.data(), bits.size());
    return held;
}

}  // namespace larder::cache
