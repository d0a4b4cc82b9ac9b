// Packing of a raw tree into shards: no sample is lost, equal input gives equal bytes, and a failure leaves no output.

#include "cache/dataset/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "cache/protocol/tar.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PackTest : public ::testing::Test {
protected:
    Result<PackReport> pack(std::uint64_t shard_bytes = std::uint64_t{256} << 20,
                            const std::string& destination = "shards", std::stop_token stop = {},
                            const IndexProgressCallback& progress = {}) {
        return pack_dataset(
            {.source = {.url = source_.string()}, .destination = directory_ / destination, .shard_bytes = shard_bytes},
            progress, stop);
    }
    std::map<std::string, std::string> files(const std::string& below) const {
        std::map<std::string, std::string> found;
        for (const auto& entry : std::filesystem::directory_iterator(directory_.path() / below)) {
            found[entry.path().filename().string()] = test::read_bytes(entry.path());
        }
        return found;
    }
    // The sorted names in the test's directory, to check that nothing else is left there.
    std::vector<std::string> names_left() const {
        std::vector<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator(directory_.path()))
            names.push_back(entry.path().filename().string());
        std::ranges::sort(names);
        return names;
    }

    test::TempDirectory directory_;
    std::filesystem::path source_ = directory_.path() / "data";
};

TEST_F(PackTest, EveryFileIsASampleWithItsLabel) {
    const auto expected = test::make_tree(source_, {.class_count = 3, .files_per_class = 40, .bytes_max = 5000});
    const auto report = pack(100'000);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->sample_count, 120u);
    EXPECT_EQ(report->class_count, 3u);
    EXPECT_GT(report->shard_count, 3u);
    EXPECT_EQ(files("shards").size(), report->shard_count);
    for (const auto& [name, bytes] : files("shards")) EXPECT_LE(bytes.size(), 100'000u + 20'480) << "its end is padded";
    EXPECT_TRUE(files("shards").contains("shard-000000.tar"));

    const auto manifest = test::make_manifest(directory_.path() / "shards", directory_ / "m");
    ASSERT_EQ(manifest.sample_count(), 120u);
    std::map<std::string, std::string> found;
    bool in_order = true;
    for (std::uint64_t i = 0; i < 120; ++i) {
        const std::string bytes = test::sample_content(directory_.path() / "shards", manifest, i);
        std::vector<protocol::TarField> fields;
        std::deque<std::string> texts;
        const auto key = protocol::split_sample(std::as_bytes(std::span(bytes)), fields, texts);
        ASSERT_TRUE(key);
        ASSERT_EQ(fields.size(), 2u);
        EXPECT_EQ(fields[0].name, "bin");
        EXPECT_EQ(fields[1].name, "cls");
        const auto text = [](const protocol::TarField& field) {
            return std::string(reinterpret_cast<const char*>(field.bytes.data()), field.bytes.size());
        };
        const auto index = std::stoul(std::string(*key));
        in_order = in_order && index == i;
        EXPECT_EQ(text(fields[0]), expected.at(index).content);
        EXPECT_EQ(text(fields[1]), std::to_string(index / 40));
        found[std::string(*key)] = text(fields[0]);
    }
    EXPECT_EQ(found.size(), 120u);
    EXPECT_FALSE(in_order) << "neighbours are of mixed classes";
}

TEST_F(PackTest, EqualInputGivesEqualBytes) {
    test::make_tree(source_);
    ASSERT_TRUE(pack(50'000, "one"));
    for (auto& entry : std::filesystem::recursive_directory_iterator(source_)) {
        std::filesystem::last_write_time(entry.path(), std::filesystem::file_time_type{} + std::chrono::hours(5));
    }
    ASSERT_TRUE(pack(50'000, "two"));
    EXPECT_EQ(files("one"), files("two"));
}

TEST_F(PackTest, NamesFieldsBySuffix) {
    for (const char* name : {"a.JPG", "b", "c.tar.gz", "d.we-ird", "e.cls"}) test::write_file(source_ / name, name);
    ASSERT_TRUE(pack());
    const std::string archive = files("shards").begin()->second;
    std::vector<std::string> names;
    protocol::TarReader reader(std::as_bytes(std::span(archive)));
    for (auto member = reader.next(); member && *member; member = reader.next()) names.emplace_back((*member)->name);
    std::ranges::sort(names);
    EXPECT_THAT(names, ElementsAre("000000000.jpg", "000000001.bin", "000000002.gz", "000000003.bin", "000000004.bin"))
        << "no label, no cls";
}

TEST_F(PackTest, NonEmptyDestinationIsRefused) {
    test::make_tree(source_);
    std::filesystem::create_directory(directory_.path() / "shards");
    EXPECT_TRUE(pack());
    const auto before = files("shards");
    const auto again = pack();
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().code, ErrorCode::already_exists);
    EXPECT_EQ(files("shards"), before);
    test::write_file(directory_.path() / "file", "x");
    EXPECT_EQ(pack(1 << 20, "file").error().code, ErrorCode::already_exists);
    const auto nowhere = pack(1 << 20, "absent/shards");
    ASSERT_FALSE(nowhere);
    EXPECT_EQ(nowhere.error().code, ErrorCode::not_found);
}

TEST_F(PackTest, FailureLeavesNothingBehind) {
    test::make_tree(source_);
    std::stop_source stop;
    const auto stopped = pack(1 << 20, "shards", stop.get_token(), [&](const IndexProgress& progress) {
        if (progress.objects_done == 5) stop.request_stop();
    });
    ASSERT_FALSE(stopped);
    EXPECT_EQ(stopped.error().code, ErrorCode::cancelled);
    EXPECT_THAT(names_left(), ElementsAre("data"));

    // Files that shrink while they are packed. Afterwards every file is empty.
    const auto shorten = [&](const IndexProgress& progress) {
        if (progress.objects_done != 1) return;
        for (auto& entry : std::filesystem::recursive_directory_iterator(source_)) {
            if (entry.is_regular_file()) std::filesystem::resize_file(entry.path(), 0);
        }
    };
    const auto shortened = pack(1 << 20, "shards", {}, shorten);
    ASSERT_FALSE(shortened);
    EXPECT_EQ(shortened.error().code, ErrorCode::changed);
    EXPECT_THAT(shortened.error().message, HasSubstr("became shorter while it was"));
    EXPECT_THAT(names_left(), ElementsAre("data"));
    EXPECT_THAT(pack().error().message, HasSubstr("no files to train on"));
    EXPECT_THAT(names_left(), ElementsAre("data"));
}

TEST_F(PackTest, ReportsProgress) {
    test::make_tree(source_, {.class_count = 1, .files_per_class = 3});
    std::vector<std::uint64_t> seen;
    IndexProgress last;
    ASSERT_TRUE(pack(1 << 20, "shards", {}, [&](const IndexProgress& progress) {
        seen.push_back(progress.objects_done);
        last = progress;
    }));
    EXPECT_THAT(seen, ElementsAre(1, 2, 3));
    EXPECT_EQ(last.objects_total, 3u);
    EXPECT_EQ(last.bytes_done, last.bytes_total);
}

TEST_F(PackTest, FilesSurvivePackingIntoBlocks) {
    const auto expected = test::make_tree(source_, {.class_count = 3, .files_per_class = 40, .bytes_max = 5000});
    for (const auto& level : {std::optional<int>{}, std::optional<int>{1}}) {
        const std::string destination = level ? "compressed" : "packed";
        const auto report = pack_dataset({.source = {.url = source_.string()},
                                          .destination = directory_ / destination,
                                          .format = protocol::Format::larder,
                                          .shard_bytes = 100'000,
                                          .block = {.target = protocol::BlockTarget::bytes, .bytes = 20'000},
                                          .zstd_level = level},
                                         {}, {});
        ASSERT_TRUE(report) << report.error().message;
        EXPECT_GT(report->shard_count, 3u);
        EXPECT_EQ(report->source_format, protocol::Format::raw);

        const auto manifest = test::make_manifest(directory_.path() / destination, directory_ / "m");
        EXPECT_EQ(manifest.header().format, protocol::Format::larder);
        EXPECT_EQ(manifest.sample_format(), protocol::Format::webdataset);
        ASSERT_TRUE(manifest.has_checksums());
        EXPECT_EQ(manifest.sample_count(), 120u);
        EXPECT_EQ(manifest.header().block_target_bytes, 20'000u);
        std::map<std::string, std::string> found;
        const auto packed = pack_dataset(
            {.source = {.url = directory_ / destination}, .destination = directory_ / (destination + "-tars")}, {}, {});
        ASSERT_TRUE(packed) << packed.error().message;
        EXPECT_EQ(packed->source_format, protocol::Format::larder);
        const std::string archive = files(destination + "-tars").begin()->second;
        protocol::TarReader reader(std::as_bytes(std::span(archive)));
        std::multiset<std::string> contents;
        std::multiset<std::string> wanted;
        for (auto member = reader.next(); member && *member; member = reader.next()) {
            if ((*member)->name.ends_with(".cls")) continue;
            contents.insert(archive.substr((*member)->data_offset, (*member)->data_bytes));
        }
        for (const auto& file : expected) wanted.insert(file.content);
        EXPECT_EQ(contents, wanted);
        std::filesystem::remove(directory_.path() / "m");
    }
}

TEST_F(PackTest, OtherTargetFormatsAreRefused) {
    test::make_tree(source_);
    const auto packed = pack_dataset(
        {.source = {.url = source_.string()}, .destination = directory_ / "shards", .format = protocol::Format::mds},
        {}, {});
    ASSERT_FALSE(packed);
    EXPECT_THAT(packed.error().message, HasSubstr("webdataset or larder, not as mds"));
}

}  // namespace
}  // namespace larder::cache
