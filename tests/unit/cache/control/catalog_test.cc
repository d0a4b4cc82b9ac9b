#include "cache/control/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class CatalogTest : public testing::Test {
protected:
    DatasetRecord record(const std::string& name) {
        return {.definition = {.name = name,
                               .url = "file:///data/" + name,
                               .remote = {.follow_symlinks = name == "b"},
                               .format = protocol::Format::webdataset,
                               .block = {protocol::BlockTarget::bytes, 8u << 20},
                               .tokens_per_sample = name == "b" ? 2049u : 0u},
                .dataset_id = 0x00f3000000000001,
                .access = {.owner = 1000, .group = 100, .mode = 0604},
                .quota = {.memory_bytes = 5, .disk_bytes = 6},
                .versions = {1, 2}};
    }
    void put(const DatasetRecord& put_record) {
        ASSERT_TRUE(catalog.create(put_record.definition.name));
        for (const auto version : put_record.versions) {
            test::write_file(catalog.manifest_path(put_record.definition.name, version), "manifest");
        }
        ASSERT_TRUE(catalog.save(put_record));
    }
    bool exists(const std::string& name) { return std::filesystem::exists(directory / ("datasets/" + name)); }

    test::TempDirectory directory;
    Catalog catalog{directory / "datasets"};
};

TEST_F(CatalogTest, LoadCreatesAMissingDirectory) {
    const auto loaded = catalog.load();
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
    EXPECT_TRUE(loaded->records.empty());
    EXPECT_TRUE(exists(""));
}

TEST_F(CatalogTest, SavedRecordsLoadUnchanged) {
    put(record("b"));
    put(record("a.1"));
    const auto loaded = catalog.load();
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
    ASSERT_EQ(loaded->records.size(), 2u);
    const DatasetRecord& first = loaded->records[0];
    EXPECT_EQ(first.definition.name, "a.1");
    EXPECT_EQ(first.definition.url, "file:///data/a.1");
    EXPECT_EQ(first.definition.format, protocol::Format::webdataset);
    EXPECT_EQ(first.definition.block.target, protocol::BlockTarget::bytes);
    EXPECT_EQ(first.definition.block.bytes, 8u << 20);
    EXPECT_EQ(first.definition.tokens_per_sample, 0u);
    EXPECT_EQ(loaded->records[1].definition.tokens_per_sample, 2049u);
    EXPECT_FALSE(first.definition.remote.follow_symlinks);
    EXPECT_TRUE(loaded->records[1].definition.remote.follow_symlinks);
    EXPECT_EQ(first.dataset_id, 0x00f3000000000001u);
    EXPECT_EQ(first.access.owner, 1000u);
    EXPECT_EQ(first.access.group, 100u);
    EXPECT_EQ(first.access.mode, 0604u);
    EXPECT_EQ(first.quota.memory_bytes, 5u);
    EXPECT_EQ(first.quota.disk_bytes, 6u);
    EXPECT_THAT(first.versions, ElementsAre(1, 2));
    EXPECT_TRUE(loaded->removed.empty());
}

TEST_F(CatalogTest, RecordIsWrittenInItsKnownBytes) {
    DatasetRecord full = record("b");
    full.definition.remote = {.region = "eu-1", .unsigned_access = true};
    full.definition.checksum = true;
    full.definition.compression = {CompressionKind::zstd, 5};
    full.quota_held = true;
    put(full);
    EXPECT_EQ(read_file(directory / "datasets/b/dataset.json").value(),
              R"({"name":"b","url":"file:///data/b","format":"webdataset","block":"8 MiB",)"
              R"("dataset_id":"00f3000000000001","owner":1000,"group":100,"mode":"0604",)"
              R"("quota":{"memory_bytes":5,"disk_bytes":6},"quota_held":true,"versions":[1,2],)"
              R"("remote":{"region":"eu-1","unsigned":true},"compression":"zstd:5","checksum":true,)"
              R"("tokens_per_sample":2049})"
              "\n");
}

TEST_F(CatalogTest, LoadRemovesUnfinishedDatasetsAndFiles) {
    put(record("good"));
    ASSERT_TRUE(catalog.create("half"));
    test::write_file(catalog.manifest_path("half", 1), "manifest");
    test::write_file(catalog.manifest_path("good", 3) + ".new", "manifest");
    const auto loaded = catalog.load();
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
    ASSERT_EQ(loaded->records.size(), 1u);
    EXPECT_EQ(loaded->removed.size(), 2u);
    EXPECT_FALSE(exists("half"));
    EXPECT_FALSE(exists("good/manifest-3.new"));
    EXPECT_TRUE(exists("good/manifest-2"));
}

TEST_F(CatalogTest, UnfinishedJournalsAreKeptForAWeek) {
    put(record("good"));
    ASSERT_TRUE(catalog.create("half"));
    test::write_file(catalog.manifest_path("half", 1) + ".new", "manifest");
    const std::string half_journal = catalog.manifest_path("half", 1) + ".journal";
    const std::string good_journal = catalog.manifest_path("good", 3) + ".journal";
    test::write_file(half_journal, "journal");
    test::write_file(good_journal, "journal");
    test::write_file(catalog.manifest_path("good", 2) + ".journal", "of a version that is there");
    EXPECT_THAT(catalog.load()->stopped, ElementsAre("half"));
    EXPECT_TRUE(exists("half/manifest-1.journal"));
    EXPECT_FALSE(exists("half/manifest-1.new"));
    EXPECT_TRUE(exists("good/manifest-3.journal"));
    EXPECT_FALSE(exists("good/manifest-2.journal"));

    const auto last_week = std::filesystem::file_time_type::clock::now() - std::chrono::hours(8 * 24);
    for (const std::string& journal : {half_journal, good_journal})
        std::filesystem::last_write_time(journal, last_week);
    const auto loaded = catalog.load();
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
    EXPECT_EQ(loaded->removed.size(), 2u);
    EXPECT_TRUE(loaded->stopped.empty());
    EXPECT_FALSE(exists("half"));
    EXPECT_FALSE(exists("good/manifest-3.journal"));
}

TEST_F(CatalogTest, SavingAVersionRemovesItsJournal) {
    test::write_file(catalog.manifest_path("a", 2) + ".journal", "journal");
    put(record("a"));
    EXPECT_FALSE(exists("a/manifest-2.journal"));
}

TEST_F(CatalogTest, AbandonedAdditionLeavesAtMostItsJournal) {
    test::write_file(catalog.manifest_path("a", 1), "manifest");
    test::write_file(catalog.manifest_path("b", 1) + ".journal", "journal");
    EXPECT_EQ(catalog.abandon("a"), true);
    EXPECT_EQ(catalog.abandon("b"), false);
    EXPECT_EQ(catalog.abandon("c"), true);
    EXPECT_FALSE(exists("a"));
    EXPECT_TRUE(exists("b/manifest-1.journal"));
}

TEST_F(CatalogTest, LoadKeepsForeignFiles) {
    test::write_file(directory / "datasets/imagenet/train/n01440764/a.jpg", "somebody's data");
    test::write_file(directory / "datasets/notes.txt", "somebody's notes");
    put(record("good"));
    test::write_file(directory / "datasets/good/README", "somebody's too");
    ASSERT_TRUE(catalog.load().has_value());
    EXPECT_TRUE(exists("imagenet/train/n01440764/a.jpg"));
    EXPECT_TRUE(exists("notes.txt"));
    EXPECT_TRUE(exists("good/README"));
}

TEST_F(CatalogTest, OldManifestMayBeMissingButNotTheNewest) {
    put(record("a"));
    std::filesystem::remove(catalog.manifest_path("a", 1));
    auto loaded = catalog.load();
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
    EXPECT_THAT(loaded->records[0].versions, ElementsAre(2));

    std::filesystem::remove(catalog.manifest_path("a", 2));
    loaded = catalog.load();
    ASSERT_TRUE(loaded.has_value());
    ASSERT_EQ(loaded->damaged.size(), 1u);
    EXPECT_EQ(loaded->damaged[0].name, "a");
    EXPECT_THAT(loaded->damaged[0].reason.message, HasSubstr("manifest-2"));
}

TEST_F(CatalogTest, BrokenRecordIsLeftOutAndItsReasonNamesFileAndKey) {
    put(record("a"));
    put(record("good"));
    test::write_file(catalog.manifest_path("a", 3) + ".new", "of a record that may be repaired");
    const std::string path = directory / "datasets/a/dataset.json";
    const std::string good = read_file(path).value();
    const auto record_with = [&](std::string_view from, std::string_view to) {
        std::string text = good;
        text.replace(text.find(from), from.size(), to);
        return text;
    };
    const std::pair<std::string, std::string> cases[] = {
        {"", "not JSON"},
        {good.substr(0, good.size() / 2), "not JSON"},
        {"[]", "object"},
        {record_with("\"mode\"", "\"mood\""), "mode"},
        {record_with("\"0604\"", "604"), "mode"},
        {record_with("webdataset", "web"), "format"},
        {record_with("\"owner\":1000", "\"owner\":-1"), "owner"},
        {record_with("8 MiB", "8 MoB"), "block"},
        {record_with("[1,2]", "[2,1]"), "versions"},
        {record_with("[1,2]", "[]"), "versions"},
        {record_with("00f3", "00g3"), "dataset_id"},
        {record_with("{\"name\"", "{\"colour\":1,\"name\""), "colour"},
        {record_with("\"a\"", "\"b\""), "directory"},
    };
    for (const auto& [text, named] : cases) {
        test::write_file(path, text);
        const auto loaded = catalog.load();
        ASSERT_TRUE(loaded.has_value()) << text;
        ASSERT_EQ(loaded->damaged.size(), 1u) << text;
        EXPECT_EQ(loaded->damaged[0].name, "a") << text;
        EXPECT_THAT(loaded->damaged[0].reason.message, HasSubstr(path)) << text;
        EXPECT_THAT(loaded->damaged[0].reason.message, HasSubstr(named)) << text;
        ASSERT_EQ(loaded->records.size(), 1u) << text;
        EXPECT_EQ(loaded->records[0].definition.name, "good") << text;
        EXPECT_EQ(read_file(path), text);
    }
    for (const char* kept : {"a/manifest-1", "a/manifest-2", "a/manifest-3.new"}) EXPECT_TRUE(exists(kept)) << kept;
}

TEST_F(CatalogTest, RecordThatCannotBeLookedForIsNoUnfinishedAddition) {
    put(record("a"));
    const std::string path = directory / "datasets/a/dataset.json";
    std::filesystem::remove(path);
    std::filesystem::create_symlink("dataset.json", path);
    const auto loaded = catalog.load();
    ASSERT_TRUE(loaded.has_value());
    ASSERT_EQ(loaded->damaged.size(), 1u);
    EXPECT_THAT(loaded->damaged[0].reason.message, HasSubstr(path));
    EXPECT_TRUE(exists("a/manifest-2"));
}

TEST_F(CatalogTest, RemovesADataset) {
    put(record("a"));
    put(record("b"));
    ASSERT_TRUE(catalog.remove("a"));
    EXPECT_FALSE(exists("a"));
    EXPECT_EQ(catalog.load()->records.size(), 1u);
}

TEST(CatalogNames, UnsafeNamesAreRejected) {
    for (const char* good : {"a", "imagenet-1k", "A.b_c-9", "0"}) EXPECT_TRUE(check_dataset_name(good)) << good;
    const std::string longest(128, 'x');
    EXPECT_TRUE(check_dataset_name(longest));
    for (const std::string& bad :
         {std::string(), std::string("."), std::string(".."), std::string("a/b"), std::string("-a"), std::string("a b"),
          std::string("\xc3\xa4"), std::string("a\0b", 3), longest + "x"}) {
        EXPECT_FALSE(check_dataset_name(bad)) << bad;
    }
}

TEST(CatalogNames, BlockGoalsSurviveTheRoundTrip) {
    using protocol::BlockTarget;
    for (const BlockGoal& goal : {BlockGoal{BlockTarget::sample, 0}, BlockGoal{BlockTarget::object, 0},
                                  BlockGoal{BlockTarget::bytes, 1}, BlockGoal{BlockTarget::bytes, 8'388'609},
                                  BlockGoal{BlockTarget::bytes, 8u << 20}, BlockGoal{BlockTarget::bytes, 3u << 10}}) {
        const auto parsed = parse_block_goal(block_goal_text(goal));
        ASSERT_TRUE(parsed.has_value()) << block_goal_text(goal);
        EXPECT_EQ(parsed->target, goal.target);
        EXPECT_EQ(parsed->bytes, goal.bytes);
    }
}

}  // namespace
}  // namespace larder::cache
