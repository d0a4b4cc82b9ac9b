// Compression settings, the choice to compress, and the table, index rows and records of compressed blocks.

#include "cache/store/compression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/protocol/record.h"
#include "cache/store/block_table.h"
#include "cache/store/index_rows.h"

namespace larder::cache {
namespace {

using ::testing::HasSubstr;

TEST(Compression, ParsesAndFormatsTheSameText) {
    for (const char* text : {"none", "auto", "zstd:1", "zstd:3", "zstd:19"}) {
        const auto parsed = parse_compression(text);
        ASSERT_TRUE(parsed) << text;
        EXPECT_EQ(format_compression(*parsed), text);
    }
    EXPECT_EQ(format_compression(*parse_compression("zstd")), "zstd:3");
    for (const char* text : {"", "zst", "zstd:", "zstd:0", "zstd:20", "zstd:3x", "zstd:-1", "lz4", "AUTO"}) {
        const auto parsed = parse_compression(text);
        ASSERT_FALSE(parsed) << text;
        EXPECT_THAT(parsed.error().message, HasSubstr("is not none, auto, zstd or zstd:LEVEL"));
    }
}

TEST(Compression, KeepsOnlyBlocksThatShrinkByMoreThanATenth) {
    EXPECT_EQ(compressed_bytes_max(1000), 899u);
    EXPECT_EQ(compressed_bytes_max(1), 0u);
    EXPECT_EQ(compressed_bytes_max(0), 0u);
}

TEST(CompressionChoice, StopsAfterAnIncompressibleSample) {
    CompressionChoice choice({CompressionKind::zstd, 3});
    for (std::uint32_t i = 0; i < CompressionChoice::kSampleBlocks; ++i) {
        EXPECT_TRUE(choice.wants(100, 1000)) << i;
        choice.note(1000, i % 8 == 0 ? 800 : 1000);
    }
    EXPECT_FALSE(choice.wants(100, 1000));
    EXPECT_TRUE(choice.failed());
    EXPECT_EQ(choice.stored_ratio(), 1);
}

TEST(CompressionChoice, ContinuesWhileBlocksShrink) {
    CompressionChoice choice({CompressionKind::zstd, 3});
    EXPECT_EQ(choice.stored_ratio(), 1);
    for (int i = 0; i < 100; ++i) choice.note(1000, i % 2 == 0 ? 500 : 1000);
    EXPECT_TRUE(choice.wants(100, 1000));
    EXPECT_EQ(choice.stored_ratio(), 0.75);
}

TEST(CompressionChoice, AutomaticCompressesOnlyADatasetLargerThanTheQuota) {
    const CompressionChoice choice({CompressionKind::automatic, 1});
    EXPECT_FALSE(choice.wants(1000, 1000));
    EXPECT_TRUE(choice.wants(1001, 1000));
    EXPECT_FALSE(CompressionChoice({}).wants(1001, 1000));
}

TEST(CompressedBlocks, TableKeepsTheirUncompressedSizes) {
    BlockTable table(10);
    table.set(3, {.slot = 0, .offset_units = 1, .payload_bytes = 100, .payload_crc = 1});
    EXPECT_EQ(table.raw_bytes(3), 100u);
    table.set(4, {.slot = 0, .offset_units = 5, .payload_bytes = 50, .payload_crc = 1}, 200);
    EXPECT_EQ(table.raw_bytes(4), 200u);
    EXPECT_EQ(table.raw_bytes(3), 100u);
    table.clear(4);
    table.set(4, {.slot = 0, .offset_units = 9, .payload_bytes = 60, .payload_crc = 1});
    EXPECT_EQ(table.raw_bytes(4), 60u);
    table.grow(20);
    EXPECT_EQ(table.raw_bytes(15), 0u);
    table.set(15, {.slot = 0, .offset_units = 20, .payload_bytes = 7, .payload_crc = 1}, 70);
    EXPECT_EQ(table.raw_bytes(15), 70u);
}

TEST(CompressedBlocks, ReadsPlainAndCompressedIndexRows) {
    const IndexKey key(1, 2, 3);
    const std::span<const unsigned char> bytes(key.bytes);
    const auto read = [&](auto row) {
        row.crc = row_crc(bytes, row);
        return read_block_row(bytes, {reinterpret_cast<const unsigned char*>(&row), sizeof row});
    };
    const auto plain = read(BlockRow{7, 100, 5, 0});
    ASSERT_TRUE(plain);
    EXPECT_EQ(plain->payload_bytes, 100u);
    EXPECT_EQ(plain->raw_bytes, 0u);
    const auto compressed = read(CompressedBlockRow{7, 100, 5, 400, 0});
    ASSERT_TRUE(compressed);
    EXPECT_EQ(compressed->raw_bytes, 400u);
    EXPECT_FALSE(read(CompressedBlockRow{7, 400, 5, 400, 0})) << "not smaller than the block";
    const CompressedBlockRow unsealed{7, 100, 5, 400, 0};
    EXPECT_FALSE(read_block_row(bytes, {reinterpret_cast<const unsigned char*>(&unsealed), sizeof unsealed}));
}

TEST(CompressedBlocks, RecordNotSmallerThanItsBlockIsRejected) {
    const auto read = [](std::uint32_t payload_bytes, std::uint32_t raw_bytes) {
        const auto header =
            protocol::make_record_header(1, 2, payload_bytes, 3, 4, {.raw_bytes = raw_bytes, .raw_crc = 5});
        return protocol::read_record_header(std::as_bytes(std::span(&header, 1)));
    };
    ASSERT_TRUE(read(100, 101));
    EXPECT_EQ(read(100, 101)->raw_bytes, 101u);
    EXPECT_EQ(read(100, 101)->raw_crc, 5u);
    EXPECT_TRUE(read(100, 0));
    EXPECT_FALSE(read(100, 100));
    EXPECT_FALSE(read(101, 100));
}

}  // namespace
}  // namespace larder::cache
