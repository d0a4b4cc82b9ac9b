#include "cache/peers/digests_answer.h"

#include <bit>
#include <cstring>

namespace larder::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "the answer is little-endian");

constexpr std::uint32_t kDigestsMagic = 0x4749444c;  // "LDIG"

struct DigestsHeader {
    std::uint32_t magic;
    std::uint32_t block_count;
    std::uint64_t instance;
    std::uint64_t changes;
    std::uint64_t digests;
};
static_assert(sizeof(DigestsHeader) == 32);

struct DigestEntry {
    std::uint32_t block;
    BlockDigest digest;
};
static_assert(sizeof(DigestEntry) == 20);

}  // namespace

std::size_t digests_bytes_max() {
    return sizeof(DigestsHeader) + kDigestsPerAnswerMax * sizeof(DigestEntry);
}

std::string encode_digests(const DigestsAnswer& answer, std::uint32_t block_count) {
    const DigestsHeader header{.magic = kDigestsMagic,
                               .block_count = block_count,
                               .instance = answer.state.instance,
                               .changes = answer.state.changes,
                               .digests = answer.blocks.size()};
    std::string text(sizeof header + answer.blocks.size() * sizeof(DigestEntry), '\0');
    std::memcpy(text.data(), &header, sizeof header);
    char* at = text.data() + sizeof header;
    for (const auto& [block, digest] : answer.blocks) {
        const DigestEntry entry{.block = block, .digest = digest};
        std::memcpy(at, &entry, sizeof entry);
        at += sizeof entry;
    }
    return text;
}

std::optional<DigestsAnswer> decode_digests(std::span<const std::byte> answer, std::uint32_t block_count) {
    DigestsHeader header;
    if (answer.size() < sizeof header) return std::nullopt;
    std::memcpy(&header, answer.data(), sizeof header);
    if (header.magic != kDigestsMagic || header.block_count != block_count) return std::nullopt;
    const auto entries = answer.subspan(sizeof header);
    if (header.digests > kDigestsPerAnswerMax || entries.size() != header.digests * sizeof(DigestEntry)) {
        return std::nullopt;
    }
    DigestsAnswer digests{.state = {.instance = header.instance, .changes = header.changes}, .blocks = {}};
    digests.blocks.reserve(header.digests);
    for (std::size_t i = 0; i < header.digests; ++i) {
        DigestEntry entry;
        std::memcpy(&entry, entries.data() + i * sizeof entry, sizeof entry);
        if (entry.block >= block_count || !entry.digest.is_known()) return std::nullopt;
        digests.blocks.emplace_back(entry.block, entry.digest);
    }
    return digests;
}

}  // namespace larder::cache
