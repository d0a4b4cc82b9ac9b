// The journal of an indexing run. A record counts only for the exact object it was made from, torn or damaged records
// are made again, and a resumed run gives the same manifest as an uninterrupted one.

#include "cache/dataset/index_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/dataset/index_mds.h"
#include "cache/dataset/index_megatron.h"
#include "cache/dataset/index_packed.h"
#include "cache/dataset/index_tfrecord.h"
#include "cache/dataset/packed_writer.h"
#include "tests/support/foreign_format_files.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using test::MemorySource;
using ::testing::HasSubstr;

IndexedObject object_of(const std::string& path, std::uint32_t samples) {
    IndexedObject object{.path = path, .size_bytes = 100'000, .tag = 77, .empty_samples = 3, .left_over_bytes = 4};
    object.members_not_files = 5;
    object.members_without_key = 6;
    object.shared = "int32";
    for (std::uint32_t i = 0; i < samples; ++i) {
        object.blocks.push_back({.offset = i * 100, .length = 90, .first_sample = 2 * i, .sample_count = 2});
        object.samples.push_back({0, 40});
        object.samples.push_back({40, 50});
        object.checksums.push_back(i);
    }
    return object;
}

JournalKey key_of(const IndexedObject& object) {
    return {.path = object.path, .size_bytes = object.size_bytes, .tag = object.tag, .depends_on = 9};
}

// All fields of the object in one string.
std::string text_of(const IndexedObject& object) {
    return encode_journal_record(key_of(object), object);
}

class IndexJournalTest : public ::testing::Test {
protected:
    std::unique_ptr<IndexJournal> open(std::string_view parameters = "tars") {
        auto journal = IndexJournal::open(path_, parameters);
        EXPECT_TRUE(journal) << journal.error().message;
        return std::move(*journal);
    }
    // Writes a journal of objects a, b and c.
    void write() {
        const auto journal = open();
        for (const IndexedObject& object : objects_) journal->add(key_of(object), object);
        EXPECT_EQ(journal->failure(), std::nullopt);
    }
    // The names of the objects that the journal holds. Checks that each record is unchanged.
    std::string names_in(IndexJournal& journal) {
        std::string names;
        for (const IndexedObject& object : objects_) {
            const auto known = journal.find(key_of(object));
            if (!known) continue;
            EXPECT_EQ(text_of(*known), text_of(object));
            names += object.path;
        }
        return names;
    }

    test::TempDirectory directory_;
    std::string path_ = directory_ / "manifest-1.journal";
    std::vector<IndexedObject> objects_{object_of("a", 3), object_of("b", 0), object_of("c", 40)};
};

TEST_F(IndexJournalTest, FindsRecordsAsTheyWereAdded) {
    EXPECT_EQ(names_in(*open()), "");
    EXPECT_FALSE(std::filesystem::exists(path_)) << "there is nothing to keep yet";
    write();
    const auto journal = open();
    EXPECT_EQ(names_in(*journal), "abc");
    EXPECT_EQ(journal->found(JournalKind::index), 3u);
    EXPECT_EQ(journal->found(JournalKind::checksums), 0u);
}

TEST_F(IndexJournalTest, RecordMatchesOnlyItsExactObject) {
    write();
    const auto journal = open();
    const JournalKey key = key_of(objects_[0]);
    for (const auto change :
         {+[](JournalKey& changed) { changed.tag += 1; }, +[](JournalKey& changed) { changed.size_bytes += 1; },
          +[](JournalKey& changed) { changed.depends_on += 1; },
          +[](JournalKey& changed) { changed.kind = JournalKind::checksums; },
          +[](JournalKey& changed) { changed.path = "A"; }}) {
        JournalKey other = key;
        change(other);
        EXPECT_FALSE(journal->find(other));
    }
    EXPECT_TRUE(journal->find(key));
}

TEST_F(IndexJournalTest, DifferentIndexingDiscardsTheJournal) {
    write();
    EXPECT_EQ(names_in(*open("tars of another size")), "");
    EXPECT_FALSE(std::filesystem::exists(path_));
    EXPECT_EQ(names_in(*open()), "");
}

TEST_F(IndexJournalTest, TruncationLosesOnlyTornRecords) {
    write();
    const std::string whole = test::read_bytes(path_);
    const std::size_t a = text_of(objects_[0]).size();
    const std::size_t b = text_of(objects_[1]).size();
    for (std::size_t bytes = 0; bytes < whole.size(); bytes += bytes < 400 ? 1 : 61) {
        test::write_file(path_, whole.substr(0, bytes));
        const std::size_t records = bytes < sizeof(JournalHeader) ? 0 : bytes - sizeof(JournalHeader);
        const std::string expected = records < a ? "" : records < a + b ? "a" : "ab";
        EXPECT_EQ(names_in(*open()), expected) << bytes;
        write();
        EXPECT_EQ(names_in(*open()), "abc") << bytes;
    }
}

TEST_F(IndexJournalTest, FlippedBitDiscardsItsRecordAndLaterOnes) {
    write();
    const std::string whole = test::read_bytes(path_);
    for (std::size_t at = 0; at < whole.size(); at += 7) {
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ 16);
        test::write_file(path_, damaged);
        const std::string names = names_in(*open());
        EXPECT_TRUE(std::string("abc").starts_with(names) && names != "abc") << at << ": " << names;
    }
}

TEST_F(IndexJournalTest, InvalidRecordIsSkipped) {
    IndexedObject wrong = objects_[0];
    wrong.blocks[1].offset = wrong.size_bytes;  // outside the object
    IndexedObject other = objects_[2];
    other.samples[5].length = 1000;  // outside its block
    IndexedObject outside_blocks = object_of("d", 2);
    outside_blocks.samples.push_back({0, 1});  // in no block
    const auto journal = open();
    for (const IndexedObject* object : {&wrong, &other, &outside_blocks}) journal->add(key_of(*object), *object);
    journal->add(key_of(objects_[1]), objects_[1]);
    const auto again = open();
    EXPECT_EQ(names_in(*again), "b");
    EXPECT_FALSE(again->find(key_of(outside_blocks)));
}

TEST_F(IndexJournalTest, ObjectWithoutTagIsAlwaysReadAgain) {
    IndexedObject object = objects_[0];
    object.tag = 0;
    int times = 0;
    for (int i = 0; i < 2; ++i) {
        const auto journal = open();
        ASSERT_TRUE(find_or_compute(journal.get(), key_of(object), [&]() -> Result<IndexedObject> {
            ++times;
            return object;
        }));
    }
    EXPECT_EQ(times, 2);
}

TEST_F(IndexJournalTest, UnwritableJournalDoesNotStopIndexing) {
    path_ = directory_ / "no such directory/manifest-1.journal";
    const auto journal = open();
    const auto known =
        find_or_compute(journal.get(), key_of(objects_[0]), [&]() -> Result<IndexedObject> { return objects_[0]; });
    ASSERT_TRUE(known);
    ASSERT_TRUE(journal->failure());
    EXPECT_THAT(journal->failure()->message, HasSubstr("no such directory"));
}

// --- resumed indexing

class ResumedIndexingTest : public ::testing::Test {
protected:
    ResumedIndexingTest() {
        for (int i = 0; i < 30; ++i) {
            const std::string name = "shard-" + std::to_string(100 + i) + ".tar";
            test::write_tar(root_ / name, test::TarDialect::ustar,
                            test::make_samples(20, 2000, static_cast<std::uint64_t>(i)));
        }
    }
    Result<IndexReport> index(const std::string& name, std::uint64_t objects_max = 1'000'000) {
        std::stop_source stop;
        return index_dataset(
            {.definition = {.url = root_.string(),
                            .block = {protocol::BlockTarget::bytes, 8192},
                            .checksum = checksum_},
             .manifest = {.path = directory_ / name, .dataset_id = 1},
             .journal_path = journal_path(directory_ / name)},
            [&](const IndexProgress& now) {
                last_ = now;
                if (now.objects_done >= now.objects_resumed + objects_max) stop.request_stop();
            },
            stop.get_token());
    }
    std::string manifest(const std::string& name) { return test::read_bytes(directory_ / name); }

    test::TempDirectory directory_;
    std::filesystem::path root_ = directory_.path() / "data";
    bool checksum_ = false;
    IndexProgress last_;
};

TEST_F(ResumedIndexingTest, GivesTheManifestOfAnUninterruptedRun) {
    for (const bool checksum : {false, true}) {
        checksum_ = checksum;
        const std::string uninterrupted = checksum ? "uninterrupted-summed" : "uninterrupted";
        const std::string interrupted = checksum ? "interrupted-summed" : "interrupted";
        ASSERT_TRUE(index(uninterrupted));
        int stops = 0;
        auto report = index(interrupted, 7);
        for (; !report; report = index(interrupted, 7)) {
            ASSERT_EQ(report.error().code, ErrorCode::cancelled) << report.error().message;
            ASSERT_LT(++stops, 10) << "each run resumes where the last one stopped";
        }
        EXPECT_GE(stops, 1);
        EXPECT_GT(report->objects_resumed, 0u);
        EXPECT_TRUE(checksum || last_.objects_resumed == report->objects_resumed);
        EXPECT_EQ(manifest(interrupted), manifest(uninterrupted));
    }
}

TEST_F(ResumedIndexingTest, ChangedShardIsReadAgain) {
    ASSERT_TRUE(index("manifest"));
    ASSERT_EQ(index("manifest")->objects_resumed, 30u);
    test::write_tar(root_ / "shard-104.tar", test::TarDialect::ustar, test::make_samples(21, 2000, 99));
    const auto report = index("manifest");
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->objects_resumed, 29u);
    EXPECT_EQ(report->manifest.sample_count, 601u);
    ASSERT_TRUE(index_dataset({.definition = {.url = root_.string(), .block = {protocol::BlockTarget::bytes, 8192}},
                               .manifest = {.path = directory_ / "anew", .dataset_id = 1}},
                              {}, {}));
    EXPECT_EQ(manifest("manifest"), manifest("anew"));
}

TEST_F(ResumedIndexingTest, DifferentBlockGoalResumesNothing) {
    ASSERT_TRUE(index("manifest"));
    const auto report = index_dataset({.definition = {.url = root_.string()},
                                       .manifest = {.path = directory_ / "manifest"},
                                       .journal_path = journal_path(directory_ / "manifest")},
                                      {}, {});
    ASSERT_TRUE(report);
    EXPECT_EQ(report->objects_resumed, 0u);
    EXPECT_EQ(report->manifest.block_count, 600u);
}

TEST_F(ResumedIndexingTest, ResumesTheChecksumsOfRawFiles) {
    test::make_tree(directory_.path() / "tree");
    root_ = directory_.path() / "tree";
    for (const char* name : {"manifest", "manifest"}) {
        const auto report =
            index_dataset({.definition = {.url = root_.string(), .format = protocol::Format::raw, .checksum = true},
                           .manifest = {.path = directory_ / name},
                           .journal_path = journal_path(directory_ / name)},
                          {}, {});
        ASSERT_TRUE(report) << report.error().message;
        last_.objects_resumed = report->objects_resumed;
    }
    EXPECT_EQ(last_.objects_resumed, 30u);
}

// Indexes twice with the same journal and checks that the results are equal. Returns the bytes that the second run
// reads.
template <typename Index>
std::uint64_t bytes_read_again(MemorySource& source, const std::string& path, Index index) {
    DatasetContent contents[2];
    std::uint64_t before = 0;
    for (DatasetContent& content : contents) {
        before = source.bytes_read;
        const auto journal = IndexJournal::open(path, "");
        const Result<void> indexed = index(content, journal->get());
        EXPECT_TRUE(indexed) << indexed.error().message;
    }
    EXPECT_EQ(contents[0].names, contents[1].names);
    EXPECT_EQ(contents[0].format_info, contents[1].format_info);
    EXPECT_EQ(contents[0].checksums, contents[1].checksums);
    EXPECT_EQ(contents[0].sample_count(), contents[1].sample_count());
    EXPECT_EQ(contents[0].samples.size(), contents[1].samples.size());
    return source.bytes_read - before;
}

TEST(JournalOfFormats, TfrecordFilesAreNotReadAgain) {
    const test::TempDirectory directory;
    MemorySource source;
    for (const char* name : {"a.tfrecord", "b.tfrecord"}) source.objects[name] = test::tfrecord_file({"one", "two"});
    std::vector<std::string> notes;
    EXPECT_EQ(bytes_read_again(source, directory / "j",
                               [&](DatasetContent& content, IndexJournal* journal) {
                                   return index_tfrecord(source, {}, content, notes, {}, {}, journal);
                               }),
              0u);
}

TEST(JournalOfFormats, MegatronRereadsOnlyChangedIndexes) {
    const test::TempDirectory directory;
    MemorySource source;
    for (const std::string stem : {"a", "b"}) {
        const auto files = test::megatron_files({{{1, 2}, {3}}, {{4, 5}}});
        source.objects[stem + ".bin"] = files.bin;
        source.objects[stem + ".idx"] = files.idx;
    }
    std::vector<std::string> notes;
    const auto index = [&](DatasetContent& content, IndexJournal* journal) {
        return index_megatron(source, {}, 2, content, notes, {}, {}, journal);
    };
    EXPECT_EQ(bytes_read_again(source, directory / "j", index), 0u);
    // A different index of the same tokens.
    source.objects["b.idx"] = test::megatron_files({{{1, 2}, {3}}, {{4}, {5}}}).idx;
    const std::uint64_t before = source.bytes_read;
    const auto journal = IndexJournal::open(directory / "j", "");
    DatasetContent content;
    ASSERT_TRUE(index(content, journal->get()));
    EXPECT_EQ((*journal)->found(JournalKind::index), 1u);
    EXPECT_GT(source.bytes_read, before);
}

TEST(JournalOfFormats, MdsRereadsOnlyIndexJson) {
    const test::TempDirectory directory;
    MemorySource source;
    const std::string row = test::number_bytes(std::uint32_t{5}) + "hello";
    source.objects["s.mds"] = test::table_file({row, row, row}, "{}");
    source.objects["index.json"] =
        R"({"version": 2, "shards": [{"column_names": ["t"], "column_encodings": ["str"], "column_sizes": [null],)"
        R"("compression": null, "format": "mds", "hashes": [], "raw_data": {"basename": "s.mds", "bytes": )" +
        std::to_string(source.objects["s.mds"].size()) +
        R"(, "hashes": {}}, "samples": 3, "size_limit": 100, "version": 2, "zip_data": null}]})";
    std::vector<std::string> notes;
    EXPECT_EQ(bytes_read_again(source, directory / "j",
                               [&](DatasetContent& content, IndexJournal* journal) {
                                   return index_mds(source, {}, content, notes, {}, {}, journal);
                               }),
              source.objects["index.json"].size());
}

TEST(JournalOfFormats, PackedFilesAreNotReadAgain) {
    const test::TempDirectory directory;
    MemorySource source;
    for (const char* name : {"a.larder", "b.larder"}) {
        auto writer = PackedWriter::create(directory / name, {.sample_format = protocol::Format::tfrecord});
        ASSERT_TRUE(writer) << writer.error().message;
        for (const std::string sample : {"one", "two and more"}) {
            ASSERT_TRUE(writer->add(std::as_bytes(std::span(sample))));
        }
        ASSERT_TRUE(writer->finish());
        source.objects[name] = test::read_bytes(directory / name);
    }
    std::vector<std::string> notes;
    EXPECT_EQ(bytes_read_again(source, directory / "j",
                               [&](DatasetContent& content, IndexJournal* journal) {
                                   BlockGoal packed_as;
                                   auto indexed = index_packed(source, content, packed_as, notes, {}, {}, journal);
                                   EXPECT_EQ(content.sample_format, protocol::Format::tfrecord);
                                   return indexed;
                               }),
              0u);
}

}  // namespace
}  // namespace larder::cache
