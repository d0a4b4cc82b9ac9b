// Files that claim more than they hold. Indexing checks each claim against the bytes that are there before it allocates
// or reads, and a sparse file, which has any size at no cost, makes it allocate no more than a small one does.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "cache/dataset/dataset_index.h"
#include "cache/protocol/claims.h"
#include "cache/protocol/packed.h"
#include "tests/support/foreign_format_files.h"
#include "tests/support/memory_limit.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using protocol::Format;
using test::number_bytes;
using test::numbers_bytes;
using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class HostileFilesTest : public ::testing::Test {
protected:
    void SetUp() override { std::filesystem::create_directories(root()); }
    std::string root() const { return directory_ / "data"; }
    // Makes a file that begins with `head` and is `bytes` long; the rest is a hole.
    void write(const std::string& name, const std::string& head, std::uint64_t bytes) {
        test::write_file(root() + "/" + name, head);
        std::filesystem::resize_file(root() + "/" + name, bytes);
    }
    // In a child process that may allocate `bytes` more: indexes the dataset and prints the error.
    [[noreturn]] void index_within(std::uint64_t bytes, Format format) const {
        if (!test::limit_memory(bytes)) std::_Exit(2);
        const auto report = index_dataset(
            {.definition = {.url = root(), .format = format}, .manifest = {.path = directory_ / "m"}}, {}, {});
        std::fputs(report ? "no error" : report.error().message.c_str(), stderr);
        std::_Exit(0);
    }

    test::TempDirectory directory_;
};

std::string litdata_index(std::uint64_t samples, const std::string& level) {
    return R"({"chunks": [{"chunk_bytes": 1000, "chunk_size": )" + std::to_string(samples) +
           R"(, "dim": null, "filename": "c.bin"}], "config": {"compression": "zstd", "compression_level": ")" + level +
           R"(", "data_format": ["str"], "data_spec": null, "item_loader": "PyTreeLoader"}})";
}

std::string framed_head(std::uint32_t samples, std::uint32_t frames) {
    return std::string("LDFZ01\0\0", 8) + number_bytes<std::uint16_t>(1) + number_bytes<std::uint16_t>(0) +
           numbers_bytes<std::uint32_t>({samples, 1, frames});
}

TEST_F(HostileFilesTest, SparseChunkOfFourBillionFramesIsRefusedInLittleMemory) {
    const std::string index = litdata_index(1, "batch");
    write("index.json", index, index.size());
    write("c.bin", framed_head(1, 0xffffffff), std::uint64_t{104} << 30);
    EXPECT_EXIT(index_within(256 * kMiB, Format::litdata), testing::ExitedWithCode(0), "no complete frame begins here");
}

TEST_F(HostileFilesTest, SparseChunkOfFourBillionSamplesIsRefusedInLittleMemory) {
    const std::string index = litdata_index(0xffffffff, "batch");
    write("index.json", index, index.size());
    write("c.bin", framed_head(0xffffffff, 1), std::uint64_t{17} << 30);
    EXPECT_EXIT(index_within(256 * kMiB, Format::litdata), testing::ExitedWithCode(0), "no complete frame begins here");
}

TEST_F(HostileFilesTest, SparseIndexJsonIsRefusedInLittleMemory) {
    write("index.json", R"({"version": 2, "shards": []})", std::uint64_t{1} << 30);
    EXPECT_EXIT(index_within(256 * kMiB, Format::mds), testing::ExitedWithCode(0), "index.json is not JSON");
}

TEST_F(HostileFilesTest, ListOfMillionsThatAreNoShardsIsRefusedInLittleMemory) {
    std::string index = R"({"version": 2, "shards": [0)";
    for (int i = 0; i < 2'000'000; ++i) index += ",0";
    index += "]}";
    write("index.json", index, index.size());
    EXPECT_EXIT(index_within(176 * kMiB, Format::mds), testing::ExitedWithCode(0), "shards.0. is not an object");
}

TEST_F(HostileFilesTest, PackedFileWithoutRoomForItsBlocksIsRefusedInLittleMemory) {
    protocol::PackedHeader header{};
    std::copy_n(protocol::kPackedMagic, sizeof header.magic, header.magic);
    header.layout = protocol::kPackedLayout;
    header.sample_format = Format::webdataset;
    header.index_offset = 2 * protocol::kPackedBlockAlignment;
    header.block_count = static_cast<std::uint32_t>(protocol::kPackedIndexBytesMax / sizeof(protocol::PackedBlock));
    header.index_bytes = protocol::kPackedIndexBytesMax;
    header = protocol::sealed(header);
    write("a.larder", {reinterpret_cast<const char*>(&header), sizeof header},
          header.index_offset + header.index_bytes);
    EXPECT_EXIT(index_within(128 * kMiB, Format::larder), testing::ExitedWithCode(0),
                "its 8388608 blocks do not fit between header and index");
}

TEST_F(HostileFilesTest, CompressedFileCannotClaimMoreThanItsBytesHold) {
    const std::string index = litdata_index(2, "chunk");
    std::string claiming = index;
    claiming.replace(claiming.find("1000"), 4, "536870912");
    write("index.json", claiming, claiming.size());
    // A frame that does not say its size: magic, descriptor, window, an empty last block.
    const std::string frame("\x28\xb5\x2f\xfd\x00\x58\x01\x00\x00", 9);
    write("c.bin", frame, frame.size());
    EXPECT_EXIT(index_within(256 * kMiB, Format::litdata), testing::ExitedWithCode(0),
                "its 9 bytes cannot hold the 536870912 decompressed bytes that it claims");
}

TEST_F(HostileFilesTest, FrameCannotClaimMoreThanItsBytesHold) {
    const std::string index = litdata_index(1, "batch");
    write("index.json", index, index.size());
    const std::string file = framed_head(1, 1) + numbers_bytes<std::uint32_t>({0, 1 << 29, 0, 1}) +
                             number_bytes<std::uint64_t>(56) + numbers_bytes<std::uint32_t>({9, 1 << 29}) + "the frame";
    write("c.bin", file, file.size());
    EXPECT_EXIT(index_within(256 * kMiB, Format::litdata), testing::ExitedWithCode(0),
                "has 9 bytes, which cannot hold the 536870912 decompressed bytes");
}

TEST_F(HostileFilesTest, TablesLongerThanTheirFileAreRefused) {
    const std::string index = litdata_index(1, "batch");
    write("index.json", index, index.size());
    write("c.bin", framed_head(1, 1000), 200);
    EXPECT_EXIT(index_within(256 * kMiB, Format::litdata), testing::ExitedWithCode(0),
                "1 samples in 1000 frames are longer than the file, which has 200 bytes");
}

TEST_F(HostileFilesTest, FrameThatEndsBehindItsFileIsRefused) {
    const std::string index = litdata_index(1, "batch");
    write("index.json", index, index.size());
    const std::string file = framed_head(1, 1) + numbers_bytes<std::uint32_t>({0, 100, 0, 1}) +
                             number_bytes<std::uint64_t>(56) + numbers_bytes<std::uint32_t>({10, 100}) + "the frame";
    write("c.bin", file, file.size());
    EXPECT_EXIT(index_within(256 * kMiB, Format::litdata), testing::ExitedWithCode(0), "no complete frame begins here");
}

TEST_F(HostileFilesTest, CompressedFileCannotHoldMoreSamplesThanItsTable) {
    const std::string index = litdata_index(251, "chunk");
    write("index.json", index, index.size());
    const std::string frame("\x28\xb5\x2f\xfd\x00\x58\x01\x00\x00", 9);
    write("c.bin", frame, frame.size());
    EXPECT_EXIT(index_within(256 * kMiB, Format::litdata), testing::ExitedWithCode(0),
                "holds 251 samples, more than its 1000 decompressed bytes can hold");
}

TEST(Claims, LieWithinTheBytesThatAreThere) {
    using protocol::lies_within;
    EXPECT_TRUE(lies_within(0, 0, 0));
    EXPECT_TRUE(lies_within(4, 6, 10));
    EXPECT_FALSE(lies_within(4, 7, 10));
    EXPECT_FALSE(lies_within(11, 0, 10));
    EXPECT_FALSE(lies_within(1, ~std::uint64_t{0}, 10));
    EXPECT_TRUE(lies_within(4, 3, 2, 10));
    EXPECT_FALSE(lies_within(4, 4, 2, 10));
    EXPECT_FALSE(lies_within(0, std::uint64_t{1} << 61, 8, ~std::uint64_t{0} - 8));
    EXPECT_TRUE(lies_within(10, ~std::uint64_t{0}, 0, 10));
}

TEST(Claims, CompressedBytesHoldAtMostOneBlockOfZstdInFourBytes) {
    using protocol::may_decompress_to;
    EXPECT_TRUE(may_decompress_to(0, 0));
    EXPECT_TRUE(may_decompress_to(9, 3 * 131072 - 1));
    EXPECT_FALSE(may_decompress_to(9, 3 * 131072));
    EXPECT_FALSE(may_decompress_to(100, ~std::uint64_t{0}));
}

}  // namespace
}  // namespace larder::cache
