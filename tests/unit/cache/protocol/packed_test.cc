// Packed files: the reader returns what the writer stored, and refuses offsets outside the file or a block.

#include "cache/protocol/packed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "base/hash.h"
#include "cache/dataset/packed_writer.h"
#include "cache/protocol/decompressor.h"
#include "cache/protocol/format_info.h"
#include "tests/support/memory_source.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"
#include "tests/support/text.h"

namespace larder::protocol {

using test::as_bytes;
namespace {

using cache::PackedOptions;
using cache::PackedWriter;
using ::testing::HasSubstr;

class PackedTest : public ::testing::Test {
protected:
    std::string write(const std::vector<std::string>& samples, PackedOptions options) {
        const std::string path = directory_ / ("packed" + std::to_string(files_++));
        auto writer = PackedWriter::create(path, std::move(options));
        EXPECT_TRUE(writer);
        for (const std::string& sample : samples) EXPECT_TRUE(writer->add(as_bytes(sample)));
        EXPECT_TRUE(writer->finish());
        return test::read_bytes(path);
    }
    static Result<PackedIndex> index_of(const std::string& file) {
        test::MemoryReader reader(file);
        return read_packed_index(reader);
    }
    static std::string error_of(const std::string& file) {
        const auto index = index_of(file);
        return index ? "no error" : index.error().message;
    }
    // The samples that a reader of the blocks finds.
    static std::vector<std::string> samples_of(const std::string& file) {
        const auto index = index_of(file);
        EXPECT_TRUE(index) << index.error().message;
        std::vector<std::string> samples;
        std::size_t next = 0;
        for (const PackedBlock& block : index->blocks) {
            const std::string stored = file.substr(block.offset, block.stored_bytes);
            EXPECT_EQ(crc32c(as_bytes(stored)), block.checksum);
            std::string bytes = stored;
            if (block.raw_bytes > 0) {
                Decompressor decompressor;
                const auto raw = decompressor.run(as_bytes(stored), block.raw_bytes);
                EXPECT_TRUE(raw);
                bytes.assign(reinterpret_cast<const char*>(raw->get()), block.raw_bytes);
            }
            for (std::uint32_t i = 0; i < block.sample_count; ++i, ++next) {
                EXPECT_EQ(index->samples[next].offset % kPackedSampleAlignment, 0u);
                samples.push_back(bytes.substr(index->samples[next].offset, index->samples[next].length));
            }
        }
        EXPECT_EQ(next, index->samples.size());
        return samples;
    }

    test::TempDirectory directory_;
    int files_ = 0;
};

std::vector<std::string> mixed_samples() {
    std::vector<std::string> samples;
    for (std::uint64_t i = 0; i < 300; ++i) {
        samples.push_back(i % 7 == 0 ? test::random_bytes(1 + i * 13, i) : std::string(1 + i * 5, 'x'));
    }
    return samples;
}

TEST_F(PackedTest, ReadsBackWhatWasWritten) {
    for (const auto& level : {std::optional<int>{}, std::optional<int>{3}}) {
        for (const std::uint32_t block_bytes : {0u, 1000u, 65536u, 1u << 22}) {
            const std::string file = write(mixed_samples(), {.block_bytes = block_bytes, .zstd_level = level});
            EXPECT_EQ(samples_of(file), mixed_samples());
            const auto index = index_of(file);
            ASSERT_TRUE(index);
            EXPECT_EQ(index->block_bytes, block_bytes);
            EXPECT_TRUE(block_bytes > 0 || index->blocks.size() == 300) << "one block for each sample";
        }
    }
}

TEST_F(PackedTest, BlocksAreCompressedOnlyWhenTheyShrink) {
    std::vector<std::string> samples;
    for (int i = 0; i < 10; ++i) {
        samples.push_back(std::string(50'000, 'x'));
        samples.push_back(test::random_bytes(50'000, static_cast<std::uint64_t>(i)));
    }
    const auto index = index_of(write(samples, {.block_bytes = 0, .zstd_level = 1}));
    ASSERT_TRUE(index);
    for (std::size_t i = 0; i < samples.size(); ++i) {
        EXPECT_EQ(index->blocks[i].raw_bytes, i % 2 == 0 ? 50'000u : 0u);
        EXPECT_EQ(index->blocks[i].offset % kPackedBlockAlignment, 0u);
    }
}

TEST_F(PackedTest, WindowsOfEqualLengthNeedNoRows) {
    std::vector<std::string> windows;
    for (std::uint64_t i = 0; i < 100; ++i) windows.push_back(test::random_bytes(2049 * 4, i));
    const std::string file = write(windows, {.block_bytes = 1 << 17});
    EXPECT_EQ(samples_of(file), windows);
    PackedHeader header;
    std::memcpy(&header, file.data(), sizeof header);
    EXPECT_EQ(header.row_count, 0u);
    EXPECT_EQ(header.index_bytes, header.block_count * sizeof(PackedBlock));
}

TEST_F(PackedTest, StoresTheFormatOfItsSamples) {
    const std::string info = encode({.columns = {{"a", "int", 8, ElementType::int64}}, .structure = {}});
    const auto index = index_of(write({"12345678"}, {.sample_format = Format::mds, .format_info = info}));
    ASSERT_TRUE(index);
    EXPECT_EQ(index->sample_format, Format::mds);
    EXPECT_EQ(index->format_info, info);
    EXPECT_THAT(error_of(write({"12345678"}, {.sample_format = Format::mds})), HasSubstr("lacks the format info"));
}

TEST_F(PackedTest, EmptySampleIsRefused) {
    auto writer = PackedWriter::create(directory_ / "empty", {});
    ASSERT_TRUE(writer);
    EXPECT_FALSE(writer->add({}));
}

TEST_F(PackedTest, EveryTruncationIsAnError) {
    const std::string good = write({"one", "two", "three"}, {.block_bytes = 32});
    for (std::size_t bytes = 0; bytes < good.size(); bytes += bytes < 64 || bytes > 4000 ? 1 : 512) {
        EXPECT_NE(error_of(good.substr(0, bytes)), "no error") << bytes;
    }
    EXPECT_NE(error_of(good + "x"), "no error");
}

TEST_F(PackedTest, EveryFlippedBitOfHeaderAndIndexIsDetected) {
    const std::string good = write({"one", "two", "three"}, {.block_bytes = 32});
    PackedHeader header;
    std::memcpy(&header, good.data(), sizeof header);
    for (std::size_t at = 0; at < good.size(); ++at) {
        if (at == sizeof header) at = header.index_offset;
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ 0x10);
        EXPECT_NE(error_of(bad), "no error") << at;
    }
}

TEST_F(PackedTest, ForgedIndexesAreRefused) {
    const std::string good = write({"one", "two two two two two", "three"}, {.block_bytes = 64});
    struct Index {
        PackedBlock blocks[1];
        PackedSample samples[3];
    };
    const auto error_after = [&](const std::function<void(PackedHeader&, Index&)>& change) {
        std::string file = good;
        PackedHeader header;
        Index index;
        std::memcpy(&header, file.data(), sizeof header);
        std::memcpy(&index, file.data() + header.index_offset, sizeof index);
        change(header, index);
        header.index_crc = crc32c(std::as_bytes(std::span(&index, 1)));
        std::memcpy(file.data() + file.size() - sizeof index, &index, sizeof index);
        header = sealed(header);
        std::memcpy(file.data(), &header, sizeof header);
        return error_of(file);
    };
    EXPECT_EQ(error_after([](auto&, auto&) {}), "no error");
    EXPECT_THAT(error_after([](auto& h, auto&) { h.layout = 2; }), HasSubstr("layout 2 is unknown"));
    EXPECT_THAT(error_after([](auto& h, auto&) { h.magic[0] = 'X'; }), HasSubstr("not a packed file"));
    EXPECT_THAT(error_after([](auto& h, auto&) { h.sample_format = Format::raw; }), HasSubstr("unknown format"));
    EXPECT_THAT(error_after([](auto& h, auto&) { h.block_count = 0; }), HasSubstr("no block"));
    EXPECT_THAT(error_after([](auto& h, auto&) { h.block_count = 2; }), HasSubstr("do not add up to its length"));
    EXPECT_THAT(error_after([](auto& h, auto&) { h.row_count = ~std::uint64_t{0}; }),
                HasSubstr("do not add up to its length"));
    EXPECT_THAT(error_after([](auto& h, auto&) { h.index_offset = 0; }),
                HasSubstr("does not end at the end of the file"));
    EXPECT_THAT(error_after([](auto& h, auto&) { h.index_offset = ~std::uint64_t{0}; }),
                HasSubstr("does not end at the end of the file"));
    EXPECT_THAT(error_after([](auto&, auto& i) { i.blocks[0].offset = 4100; }), HasSubstr("block 0 is not aligned"));
    EXPECT_THAT(error_after([](auto&, auto& i) { i.blocks[0].offset = 0; }), HasSubstr("block 0 is not aligned"));
    EXPECT_THAT(error_after([](auto&, auto& i) { i.blocks[0].offset = 1 << 20; }), HasSubstr("outside the file"));
    EXPECT_THAT(error_after([](auto&, auto& i) { i.blocks[0].stored_bytes = 5000; }), HasSubstr("outside the file"));
    EXPECT_THAT(error_after([](auto&, auto& i) { i.blocks[0].stored_bytes = 0; }), HasSubstr("length out of range"));
    EXPECT_THAT(error_after([](auto&, auto& i) { i.blocks[0].raw_bytes = ~0u; }), HasSubstr("length out of range"));
    EXPECT_THAT(error_after([](auto&, auto& i) { i.blocks[0].sample_count = 0; }), HasSubstr("no sample"));
    EXPECT_THAT(error_after([](auto&, auto& i) { i.blocks[0].sample_count = 1 << 20; }),
                HasSubstr("than there are rows"));
    EXPECT_THAT(error_after([](auto&, auto& i) { i.blocks[0].sample_count = ~0u; }), HasSubstr("than a file may have"));
    EXPECT_THAT(error_after([](auto&, auto& i) {
                    i.blocks[0] = {.offset = 4096, .stored_bytes = 30, .raw_bytes = 1 << 30, .sample_count = 1 << 26};
                    i.blocks[0].sample_bytes = 1;
                }),
                HasSubstr("length out of range"));
    EXPECT_THAT(error_after([](auto&, auto& i) {
                    i.blocks[0] = {.offset = 4096, .stored_bytes = 30, .raw_bytes = 1 << 29, .sample_count = 1 << 25};
                    i.blocks[0].sample_bytes = 1;
                }),
                HasSubstr("than a file may have"));
    EXPECT_THAT(error_after([](auto&, auto& i) {
                    i.blocks[0] = {.offset = 4096, .stored_bytes = 30, .raw_bytes = 1 << 29, .sample_count = 1 << 20};
                    i.blocks[0].sample_bytes = 1;
                }),
                HasSubstr("claims more decompressed bytes than its bytes can hold"));
    EXPECT_THAT(error_after([](auto&, auto& i) { i.blocks[0].sample_bytes = 100; }), HasSubstr("samples outside it"));
    EXPECT_THAT(error_after([](auto&, auto& i) { i.blocks[0].sample_bytes = 1; }), HasSubstr("belong to no block"));
    EXPECT_THAT(error_after([](auto&, auto& i) { i.samples[1].offset = 17; }), HasSubstr("not aligned"));
    EXPECT_THAT(error_after([](auto&, auto& i) { i.samples[2].offset = 16; }), HasSubstr("overlaps the previous one"));
    EXPECT_THAT(error_after([](auto&, auto& i) { i.samples[2].length = 100; }), HasSubstr("a sample outside it"));
    EXPECT_THAT(error_after([](auto&, auto& i) { i.samples[0].length = 0; }), HasSubstr("empty"));
}

}  // namespace
}  // namespace larder::protocol
