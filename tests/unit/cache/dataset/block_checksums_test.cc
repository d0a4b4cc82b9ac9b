// Checksums made while indexing: they match the remote's bytes, follow the order of the manifest, and carry over to
// the next version without a second read.

#include "cache/dataset/block_checksums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/hash.h"
#include "tests/support/memory_source.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using ::testing::HasSubstr;

class BlockChecksumsTest : public ::testing::Test {
protected:
    Result<protocol::Manifest> index(std::optional<protocol::Format> format, const BlockGoal& goal,
                                     const protocol::Manifest* previous = nullptr) {
        const std::string path = directory_ / ("manifest" + std::to_string(versions_++));
        const auto report =
            index_dataset({.definition = {.url = root_.string(), .format = format, .block = goal, .checksum = true},
                           .manifest = {.path = path, .dataset_id = 1, .previous = previous}},
                          {}, {});
        if (!report) return std::unexpected(report.error());
        return protocol::Manifest::open(path);
    }
    void expect_matching_checksums(const protocol::Manifest& manifest) const {
        ASSERT_TRUE(manifest.check());
        ASSERT_TRUE(manifest.has_checksums());
        for (std::uint32_t i = 0; i < manifest.block_count(); ++i) {
            const std::string bytes = test::block_content(root_, manifest, i);
            EXPECT_EQ(manifest.block_checksum(i), crc32c(std::as_bytes(std::span(bytes)))) << i;
        }
    }

    test::TempDirectory directory_;
    std::filesystem::path root_ = directory_.path() / "data";
    int versions_ = 0;
};

TEST_F(BlockChecksumsTest, FileChecksumsMatchTheirContent) {
    test::make_tree(root_);
    const auto manifest = index(std::nullopt, {});
    ASSERT_TRUE(manifest) << manifest.error().message;
    expect_matching_checksums(*manifest);
}

TEST_F(BlockChecksumsTest, ShardBlockChecksumsMatchTheirContent) {
    std::filesystem::create_directories(root_);
    for (const char* name : {"b.tar", "a.tar", "c.tar"}) {
        test::write_tar(root_ / name, test::TarDialect::pax,
                        test::make_samples(50, 5000, static_cast<unsigned char>(name[0])));
    }
    const auto manifest =
        index(protocol::Format::webdataset, {.target = protocol::BlockTarget::bytes, .bytes = 20'000});
    ASSERT_TRUE(manifest) << manifest.error().message;
    EXPECT_GT(manifest->block_count(), 10u);
    expect_matching_checksums(*manifest);
}

TEST_F(BlockChecksumsTest, UnchangedObjectsAreNotReadAgain) {
    test::MemorySource source;
    source.objects = {{"a", "first"}, {"b", "second"}};
    const auto content = [&] {
        DatasetContent found;
        for (const auto& [path, bytes] : source.objects) {
            const auto reader = source.open(path);
            found.add_object(path, bytes.size(), (*reader)->tag(), protocol::kNoLabel);
        }
        return found;
    };
    DatasetContent first = content();
    ASSERT_TRUE(add_checksums(source, first, nullptr, {}, {}));
    EXPECT_EQ(source.bytes_read, 11u);
    const auto write = [&](DatasetContent& written, const char* name) {
        EXPECT_TRUE(
            write_manifest(written, {.format = protocol::Format::raw}, {.path = directory_ / name, .dataset_id = 1}));
        return *protocol::Manifest::open(directory_ / name);
    };
    const auto before = write(first, "before");
    source.objects["b"] = "longer than it was";
    source.bytes_read = 0;
    DatasetContent second = content();
    ASSERT_TRUE(add_checksums(source, second, &before, {}, {}));
    EXPECT_EQ(source.bytes_read, 18u) << "b only";
    const auto after = write(second, "after");
    EXPECT_EQ(after.block_checksum(0), before.block_checksum(0));
    EXPECT_NE(after.block_checksum(1), before.block_checksum(1));
}

TEST_F(BlockChecksumsTest, ObjectChangedWhileIndexingIsAnError) {
    test::MemorySource source;
    source.objects = {{"a", "first"}};
    DatasetContent found;
    found.add_object("a", 5, 1, protocol::kNoLabel);
    const auto summed = add_checksums(source, found, nullptr, {}, {});
    ASSERT_FALSE(summed);
    EXPECT_EQ(summed.error().code, ErrorCode::changed);
    EXPECT_THAT(summed.error().message, HasSubstr("a changed while it was indexed"));
}

TEST_F(BlockChecksumsTest, StopRequestCancelsIndexing) {
    test::make_tree(root_);
    std::stop_source stop;
    bool summing = false;
    const auto report = index_dataset(
        {.definition = {.url = root_.string(), .checksum = true},
         .manifest = {.path = directory_ / "m", .dataset_id = 1}},
        [&](const IndexProgress& progress) {
            summing = summing || progress.objects_total > 0;
            if (summing) stop.request_stop();
        },
        stop.get_token());
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code, ErrorCode::cancelled);
    EXPECT_FALSE(std::filesystem::exists(directory_ / "m"));
}

}  // namespace
}  // namespace larder::cache
