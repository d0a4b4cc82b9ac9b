// The header of a segment has the bytes of docs/formats-on-disk.md, so that a daemon reads the segments of another
// version.

#include "cache/store/segment_header.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/hash.h"

namespace larder::cache {
namespace {

std::vector<std::byte> header_page(std::uint32_t alignment) {
    std::vector<std::byte> page(kSegmentHeaderBytes, std::byte{0xee});
    write_segment_header(page, 0x1122334455667788, 0x2a, std::uint64_t{16} << 20, alignment);
    return page;
}

TEST(SegmentHeader, PageHasTheDocumentedBytes) {
    std::vector<std::byte> expected(kSegmentHeaderBytes, std::byte{0});
    const auto put = [&](std::size_t offset, auto value) {
        std::memcpy(expected.data() + offset, &value, sizeof value);
    };
    std::memcpy(expected.data(), "LARDERSG", 8);
    put(8, std::uint32_t{1});
    put(16, std::uint64_t{0x1122334455667788});
    put(24, std::uint64_t{16} << 20);
    put(32, std::uint32_t{0x2a});
    put(36, std::uint32_t{512});
    put(12, crc32c(std::span(expected).first(40)));
    EXPECT_EQ(header_page(512), expected);
}

TEST(SegmentHeader, AlignmentIsAPowerOfTwoOfAtLeast64) {
    for (const std::uint32_t alignment : {64u, 512u, 4096u}) {
        const auto header = read_segment_header(header_page(alignment));
        ASSERT_TRUE(header) << alignment;
        EXPECT_EQ(header->alignment, alignment);
    }
    for (const std::uint32_t alignment : {0u, 32u, 63u, 96u}) {
        EXPECT_FALSE(read_segment_header(header_page(alignment))) << alignment;
    }
}

}  // namespace
}  // namespace larder::cache
