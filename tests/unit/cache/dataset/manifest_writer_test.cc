// write_manifest carries block ids over between versions and leaves nothing behind on failure.

#include "cache/dataset/manifest_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using protocol::Format;
using protocol::Manifest;
using ::testing::HasSubstr;

constexpr std::uint64_t kDatasetId = 42;

class ManifestWriterTest : public ::testing::Test {
protected:
    Manifest write(DatasetContent content, Format format, const Manifest* previous,
                   const std::string& url = "file:///data") {
        const std::uint64_t version = previous == nullptr ? 1 : previous->header().version + 1;
        const ManifestVersion written{.path = directory_ / std::to_string(version),
                                      .dataset_id = kDatasetId,
                                      .version = version,
                                      .previous = previous};
        const auto summary = write_manifest(content, {.url = url, .format = format}, written);
        EXPECT_TRUE(summary) << summary.error().message;
        summary_ = *summary;
        auto manifest = Manifest::open(written.path);
        EXPECT_TRUE(manifest && manifest->check());
        return std::move(*manifest);
    }

    test::TempDirectory directory_;
    ManifestSummary summary_;
};

std::map<std::string, std::uint32_t> ids(const Manifest& manifest) {
    std::map<std::string, std::uint32_t> ids;
    for (std::uint64_t i = 0; i < manifest.object_count(); ++i) {
        ids.emplace(manifest.object(i).path, manifest.object(i).first_block_id);
    }
    return ids;
}

TEST_F(ManifestWriterTest, KeepsTheIdsOfUnchangedFilesOnly) {
    DatasetContent first;
    for (const char* path : {"b", "d", "f", "h"}) first.add_object(path, 100, 1, protocol::kNoLabel);
    const auto before = write(first, Format::raw, nullptr);
    EXPECT_EQ(ids(before), (std::map<std::string, std::uint32_t>{{"b", 0}, {"d", 1}, {"f", 2}, {"h", 3}}));

    DatasetContent second;
    second.add_object("a", 100, 1, protocol::kNoLabel);  // new
    second.add_object("b", 100, 1, protocol::kNoLabel);
    second.add_object("d", 101, 1, protocol::kNoLabel);  // another size
    second.add_object("f", 100, 2, protocol::kNoLabel);  // another time
    second.add_object("h", 100, 1, protocol::kNoLabel);
    second.add_object("z", 100, 1, protocol::kNoLabel);  // new
    const auto after = write(second, Format::raw, &before);
    EXPECT_EQ(ids(after),
              (std::map<std::string, std::uint32_t>{{"a", 4}, {"b", 0}, {"d", 5}, {"f", 6}, {"h", 3}, {"z", 7}}));
    EXPECT_EQ(after.header().block_id_end, 8u);
    EXPECT_EQ(summary_.objects_carried_over, 2u);
    EXPECT_EQ(summary_.bytes_carried_over, 200u);

    // The id of a removed object is never used again, not even for the same object.
    const auto third = write(first, Format::raw, &after);
    EXPECT_EQ(ids(third), (std::map<std::string, std::uint32_t>{{"b", 0}, {"d", 8}, {"f", 9}, {"h", 3}}));
}

TEST_F(ManifestWriterTest, ObjectsWithoutTagGetFreshIds) {
    DatasetContent content;
    content.add_object("a", 100, 0, protocol::kNoLabel);
    const auto before = write(content, Format::raw, nullptr);
    const auto after = write(content, Format::raw, &before);
    EXPECT_EQ(after.block_id(0), 1u);
    EXPECT_EQ(summary_.objects_carried_over, 0u);
}

TEST_F(ManifestWriterTest, KeepsTheIdsOfShardsWithEqualBlocksOnly) {
    const auto shards = [](std::uint32_t second_block_offset) {
        DatasetContent content;
        for (const char* path : {"a.tar", "b.tar"}) {
            content.add_object(path, 4000, 1, protocol::kNoLabel);
            content.objects.back().first_block = static_cast<std::uint32_t>(content.blocks.size());
            content.objects.back().block_count = 2;
            const std::uint32_t offset = content.objects.size() == 2 ? second_block_offset : 1000;
            const auto samples = static_cast<std::uint32_t>(content.samples.size());
            content.blocks.push_back({0, offset, samples, 1});
            content.blocks.push_back({offset, 2000, samples + 1, 1});
            content.samples.push_back({0, offset});
            content.samples.push_back({0, 2000});
        }
        return content;
    };
    const auto before = write(shards(1000), Format::webdataset, nullptr);
    EXPECT_EQ(ids(before), (std::map<std::string, std::uint32_t>{{"a.tar", 0}, {"b.tar", 2}}));
    const auto same = write(shards(1000), Format::webdataset, &before);
    EXPECT_EQ(ids(same), ids(before));
    EXPECT_EQ(same.header().block_id_end, 4u);
    const auto other = write(shards(1500), Format::webdataset, &same);
    EXPECT_EQ(ids(other), (std::map<std::string, std::uint32_t>{{"a.tar", 0}, {"b.tar", 4}}));
    EXPECT_EQ(other.block_id(3), 5u);
}

TEST_F(ManifestWriterTest, AnotherUrlGetsFreshIds) {
    DatasetContent content;
    content.add_object("a", 100, 1, protocol::kNoLabel);
    const auto before = write(content, Format::raw, nullptr);
    const auto after = write(content, Format::raw, &before, "file:///elsewhere");
    EXPECT_EQ(after.block_id(0), 1u);
    EXPECT_EQ(summary_.objects_carried_over, 0u);
}

// Property: over a random history of versions, equal ids mean equal objects, and unchanged objects keep their ids.
TEST_F(ManifestWriterTest, IdAlwaysMeansTheSameContent) {
    struct State {
        std::uint64_t size_bytes = 0;
        std::int64_t mtime_ns = 1;
        auto operator<=>(const State&) const = default;
    };
    std::map<std::string, State> files;
    std::map<std::uint32_t, std::pair<std::string, State>> content_of_id;
    std::optional<Manifest> previous;
    std::map<std::string, State> files_before;
    for (std::uint64_t version = 0; version < 30; ++version) {
        for (std::uint64_t i = 0; i < 20; ++i) {
            const std::uint64_t seed = version * 1000 + i;
            const std::string path = "file" + std::to_string(test::random_below(60, seed));
            const std::uint64_t action = test::random_below(4, seed + 500);
            if (action == 0) files.erase(path);
            if (action == 1) files[path].size_bytes = 1 + test::random_below(3, seed + 700);
            if (action == 2) files.insert({path, {1, 1}});
            if (action == 3 && files.contains(path)) files[path].mtime_ns += 1;
        }
        std::erase_if(files, [](const auto& file) { return file.second.size_bytes == 0; });
        ASSERT_FALSE(files.empty());
        DatasetContent content;
        for (const auto& [path, state] : files)
            content.add_object(path, state.size_bytes, state.mtime_ns, protocol::kNoLabel);
        Manifest manifest = write(std::move(content), Format::raw, previous ? &*previous : nullptr);
        const auto ids_before = previous ? ids(*previous) : std::map<std::string, std::uint32_t>{};
        for (const auto& [path, id] : ids(manifest)) {
            const auto known = content_of_id.try_emplace(id, path, files.at(path));
            EXPECT_EQ(known.first->second, std::pair(path, files.at(path)));
            if (files_before.contains(path) && files_before.at(path) == files.at(path)) {
                EXPECT_EQ(id, ids_before.at(path));
            }
        }
        previous = std::move(manifest);
        files_before = files;
    }
    EXPECT_GT(content_of_id.size(), 100u);
}

TEST_F(ManifestWriterTest, InvalidContentOrPathFailsCleanly) {
    DatasetContent empty;
    EXPECT_EQ(write_manifest(empty, {.format = protocol::Format::raw}, {.path = directory_ / "m"}).error().code,
              ErrorCode::invalid_argument);

    DatasetContent content;
    content.add_object("a", 100, 1, protocol::kNoLabel);
    const auto before = write(content, Format::raw, nullptr);
    const auto mixed_up = write_manifest(content, {.format = protocol::Format::raw},
                                         {.path = directory_ / "m", .dataset_id = kDatasetId + 1, .previous = &before});
    ASSERT_FALSE(mixed_up);
    EXPECT_THAT(mixed_up.error().message, HasSubstr("another dataset"));

    const auto nowhere = write_manifest(content, {.format = protocol::Format::raw}, {.path = directory_ / "absent/m"});
    ASSERT_FALSE(nowhere);
    EXPECT_EQ(nowhere.error().code, ErrorCode::not_found);
    EXPECT_THAT(nowhere.error().message, HasSubstr("absent/m"));

    std::filesystem::create_directory(directory_.path() / "taken");
    std::filesystem::create_directory(directory_.path() / "taken/inside");
    EXPECT_FALSE(write_manifest(content, {.format = protocol::Format::raw}, {.path = directory_ / "taken"}));
    EXPECT_FALSE(std::filesystem::exists(directory_.path() / "taken.new")) << "the temporary file is removed";
}

TEST_F(ManifestWriterTest, MappedManifestSurvivesReplacement) {
    DatasetContent content;
    content.add_object("a", 100, 1, protocol::kNoLabel);
    const auto before = write(content, Format::raw, nullptr);
    content.add_object("b", 100, 1, protocol::kNoLabel);
    ASSERT_TRUE(
        write_manifest(content, {.url = "file:///data", .format = protocol::Format::raw}, {.path = directory_ / "1"}));
    EXPECT_TRUE(before.check()) << "the mapping keeps the old file";
    EXPECT_EQ(before.object_count(), 1u);
}

}  // namespace
}  // namespace larder::cache
