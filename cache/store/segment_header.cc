#include "cache/store/segment_header.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "base/assert.h"
#include "base/hash.h"

namespace larder::cache {
namespace {

constexpr char kMagic[8] = {'L', 'A', 'R', 'D', 'E', 'R', 'S', 'G'};

std::uint32_t crc_of(SegmentHeader header) {
    header.crc = 0;
    return crc32c(std::as_bytes(std::span(&header, 1)));
}

}  // namespace

void write_segment_header(std::span<std::byte> page, std::uint64_t dataset_id, std::uint32_t segment,
                          std::uint64_t size_bytes, std::uint32_t alignment) {
    LARDER_ASSERT(page.size() == kSegmentHeaderBytes);
    SegmentHeader header{.magic = {},
                         .layout = kSegmentLayout,
                         .crc = 0,
                         .dataset_id = dataset_id,
                         .size_bytes = size_bytes,
                         .segment = segment,
                         .alignment = alignment};
    std::memcpy(header.magic, kMagic, sizeof kMagic);
    header.crc = crc_of(header);
    std::ranges::fill(page, std::byte{0});
    std::memcpy(page.data(), &header, sizeof header);
}

std::optional<SegmentHeader> read_segment_header(std::span<const std::byte> page) {
    if (page.size() < sizeof(SegmentHeader)) return std::nullopt;
    SegmentHeader header;
    std::memcpy(&header, page.data(), sizeof header);
    if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.crc != crc_of(header)) return std::nullopt;
    if (header.layout != kSegmentLayout || header.alignment < 64 || !std::has_single_bit(header.alignment)) {
        return std::nullopt;
    }
    return header;
}

std::string segment_path(const std::string& directory, std::uint32_t segment) {
    char name[32];
    std::snprintf(name, sizeof name, "/%08x.segment", segment);
    return directory + name;
}

}  // namespace larder::cache
