// Indexing of tar shards. Samples and blocks map to the members' bytes in every dialect and with every block target.
// Errors name the shard and the offset.

#include "cache/dataset/index_webdataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "cache/protocol/tar.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using protocol::BlockTarget;
using protocol::Manifest;
using test::NamedBytes;
using test::TarDialect;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// key -> field -> bytes
using Samples = std::map<std::string, std::map<std::string, std::string>>;

Samples samples_of(std::span<const NamedBytes> members) {
    Samples samples;
    for (const auto& [name, content] : members) {
        const auto dot = name.find('.', name.rfind('/') + 1);
        samples[name.substr(0, dot)][name.substr(dot + 1)] = content;
    }
    return samples;
}

Samples samples_of_manifest(const std::filesystem::path& root, const Manifest& manifest) {
    Samples samples;
    for (std::uint64_t i = 0; i < manifest.sample_count(); ++i) {
        const std::string bytes = test::sample_content(root, manifest, i);
        std::vector<protocol::TarField> fields;
        std::deque<std::string> texts;
        const auto key = protocol::split_sample(std::as_bytes(std::span(bytes)), fields, texts);
        EXPECT_TRUE(key) << key.error().message;
        EXPECT_FALSE(samples.contains(std::string(*key))) << *key << " twice";
        for (const auto& field : fields) {
            samples[std::string(*key)][std::string(field.name)] =
                std::string(reinterpret_cast<const char*>(field.bytes.data()), field.bytes.size());
        }
    }
    return samples;
}

class IndexWebdatasetTest : public ::testing::Test {
protected:
    void tar(const std::string& name, std::span<const NamedBytes> members, TarDialect dialect = TarDialect::ustar) {
        test::write_tar(root_ / name, dialect, members);
    }
    Result<IndexReport> index(const BlockGoal& block = {}) {
        return index_dataset(
            {.definition = {.url = root_.string(), .block = block}, .manifest = {.path = directory_ / "manifest"}}, {},
            {});
    }
    Manifest manifest() {
        auto manifest = Manifest::open(directory_ / "manifest");
        EXPECT_TRUE(manifest && manifest->check());
        return std::move(*manifest);
    }
    std::string error() {
        const auto report = index();
        return report ? "no error" : report.error().message;
    }

    test::TempDirectory directory_;
    std::filesystem::path root_ = directory_.path() / "shards";
};

TEST_F(IndexWebdatasetTest, SamplesMapToMembersInEveryDialectAndBlockTarget) {
    for (const auto dialect : {TarDialect::ustar, TarDialect::pax, TarDialect::gnu}) {
        SCOPED_TRACE(test::name(dialect));
        std::filesystem::remove_all(root_);
        Samples expected;
        for (std::uint64_t shard = 0; shard < 4; ++shard) {
            // Small members are read ahead, large ones are skipped.
            auto members = test::make_samples(30, shard % 2 == 0 ? 300 : 200'000, shard);
            if (dialect != TarDialect::ustar) {
                members.push_back(
                    {std::string(120, 'd') + "/" + std::string(110, 'k') + std::to_string(shard) + ".Seg.PNG", "long"});
            }
            tar("sub/" + std::to_string(shard) + ".tar", members, dialect);
            for (auto& [key, fields] : samples_of(members)) {
                for (auto& [name, content] : fields) {
                    expected[key][name == "Seg.PNG" ? "seg.png" : name] = content;
                }
            }
        }
        for (const BlockGoal goal :
             {BlockGoal{BlockTarget::sample, 0}, BlockGoal{BlockTarget::object, 0}, BlockGoal{BlockTarget::bytes, 1},
              BlockGoal{BlockTarget::bytes, 65'536}, BlockGoal{BlockTarget::bytes, 1 << 20}}) {
            SCOPED_TRACE(format_block_goal(goal));
            const auto report = index(goal);
            ASSERT_TRUE(report) << report.error().message;
            EXPECT_EQ(report->definition.format, protocol::Format::webdataset);
            EXPECT_TRUE(report->notes.empty());
            const Manifest found = manifest();
            EXPECT_EQ(found.sample_count(), expected.size());
            EXPECT_EQ(samples_of_manifest(root_, found), expected);
            for (std::uint32_t i = 0; i < found.block_count(); ++i) {
                const auto block = found.block(i);
                if (goal.target == BlockTarget::sample) {
                    EXPECT_EQ(block.sample_count, 1u);
                }
                if (goal.target == BlockTarget::bytes) {
                    EXPECT_TRUE(block.length <= goal.bytes || block.sample_count == 1);
                    // A block holds as many samples as fit: the shard's next sample would exceed the goal.
                    if (i + 1 < found.block_count() && found.block(i + 1).object == block.object) {
                        EXPECT_GT(block.length + found.sample(found.block(i + 1).first_sample).length, goal.bytes);
                    }
                }
            }
            if (goal.target == BlockTarget::object) {
                EXPECT_EQ(found.block_count(), 4u);
            }
        }
    }
}

TEST_F(IndexWebdatasetTest, GroupsOnlyConsecutiveMembers) {
    tar("a.tar", std::vector<NamedBytes>{{"dir/", ""},
                                         {"dir/1.jpg", "a"},
                                         {"README", "-"},
                                         {"dir/1.cls", "b"},
                                         {"__info__/x.json", "-"},
                                         {"2.jpg", "c"},
                                         {"dir/1.txt", "d"}});
    const auto report = index();
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->manifest.sample_count, 3u) << "a key that comes back is a sample of its own, as for WebDataset";
    EXPECT_THAT(report->notes, ElementsAre(HasSubstr("2 tar member(s) whose names give no key")));
    EXPECT_EQ(manifest().sample(0).length, 3 * 1024u) << "including the other members between its own";
}

TEST_F(IndexWebdatasetTest, DuplicateFieldIsAnError) {
    tar("a.tar", std::vector<NamedBytes>{{"0.jpg", "a"}, {"1.jpg", "a"}, {"1.cls", "b"}, {"1.JPG", "c"}});
    EXPECT_THAT(error(), AllOf(HasSubstr("a.tar: at offset 3072"), HasSubstr("the sample 1 has two fields named jpg")));
}

TEST_F(IndexWebdatasetTest, DuplicateIsFoundAmongVeryManyFields) {
    // So many that comparing each with each would take minutes.
    std::vector<NamedBytes> members;
    for (int i = 0; i < 80'000; ++i) members.push_back({"k." + std::to_string(i), ""});
    members.push_back({"k.last", "x"});
    tar("many.tar", members);
    EXPECT_EQ(error(), "no error");
    members.push_back({"K.777", "x"});
    members.push_back({"k.777", "x"});
    tar("many.tar", members);
    EXPECT_EQ(error(), "no error") << "K begins another sample, as does k after it";
    members.erase(members.end() - 2);
    tar("many.tar", members);
    EXPECT_THAT(error(), HasSubstr("the sample k has two fields named 777"));
}

TEST_F(IndexWebdatasetTest, BrokenShardErrorNamesShardAndOffset) {
    for (std::uint64_t i = 0; i < 12; ++i) tar(std::to_string(i) + ".tar", test::make_samples(5, 100, i));
    ASSERT_EQ(error(), "no error");
    const auto good = test::read_bytes(root_ / "7.tar");

    std::string flipped = good;
    flipped[2048 + 5] ^= 1;
    test::write_file(root_ / "7.tar", flipped);
    EXPECT_THAT(error(), AllOf(HasSubstr("/7.tar: at offset 2048"), HasSubstr("checksum does not match")));
    test::write_file(root_ / "7.tar", std::string_view(good).substr(0, 2048 + 600));
    EXPECT_THAT(error(), AllOf(HasSubstr("/7.tar: at offset 2048"), HasSubstr("truncated")));
    test::write_file(root_ / "7.tar", "");
    EXPECT_THAT(error(), AllOf(HasSubstr("/7.tar: at offset 0"), HasSubstr("empty")));
    for (const std::size_t bytes : {2000, 510, 1}) {
        test::write_file(root_ / "7.tar", "\x1f\x8b" + std::string(bytes, 'z'));
        EXPECT_THAT(error(),
                    AllOf(HasSubstr("/7.tar: at offset 0"), HasSubstr("compressed tar (gzip) is not supported")));
    }
    test::write_file(root_ / "7.tar", good);
    EXPECT_EQ(error(), "no error");
    for (const char* name : {"8.tar.gz", "8.tgz", "8.tar.zst"}) {
        test::write_file(root_ / name, "anything");
        EXPECT_THAT(error(), AllOf(HasSubstr(root_ / name), HasSubstr("compressed tar"), HasSubstr("unpack it")));
        std::filesystem::remove(root_ / name);
    }
}

TEST_F(IndexWebdatasetTest, ErrorNamesTheFirstOfManyBrokenShards) {
    for (std::uint64_t i = 10; i < 40; ++i) test::write_file(root_ / (std::to_string(i) + ".tar"), "broken");
    for (int i = 0; i < 20; ++i) EXPECT_THAT(error(), HasSubstr("/10.tar"));
}

TEST_F(IndexWebdatasetTest, SingleTarIsADataset) {
    const auto members = test::make_samples(10, 1000, 1);
    tar("a.tar", members);
    tar("b.tar", test::make_samples(10, 1000, 2));
    const auto report = index_dataset(
        {.definition = {.url = (root_ / "a.tar").string()}, .manifest = {.path = directory_ / "manifest"}}, {}, {});
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->definition.url, "file://" + root_.string());
    const Manifest found = manifest();
    EXPECT_EQ(found.object_count(), 1u);
    EXPECT_EQ(found.object(0).path, "a.tar");
    EXPECT_EQ(samples_of_manifest(root_, found), samples_of(members));
}

TEST_F(IndexWebdatasetTest, SkipsAndNotesFilesWithoutSamples) {
    tar("a.tar", test::make_samples(2, 10, 1));
    tar("empty.tar", {});
    tar(".hidden.tar", test::make_samples(2, 10, 2));
    const auto webdataset = protocol::Format::webdataset;
    test::write_file(root_ / "LICENSE", "text");
    const auto report = index_dataset(
        {.definition = {.url = root_.string(), .format = webdataset}, .manifest = {.path = directory_ / "manifest"}},
        {}, {});
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->manifest.object_count, 1u);
    EXPECT_THAT(report->notes,
                ElementsAre(HasSubstr("1 file(s) or directories whose names begin with a dot"),
                            HasSubstr("1 file(s) that are not .tar"), HasSubstr("1 file(s) without samples")));
    std::filesystem::remove(root_ / "a.tar");
    const auto none = index_dataset(
        {.definition = {.url = root_.string(), .format = webdataset}, .manifest = {.path = directory_ / "manifest"}},
        {}, {});
    ASSERT_FALSE(none);
    EXPECT_THAT(none.error().message, HasSubstr("has no samples"));
    std::filesystem::remove(root_ / "empty.tar");
    EXPECT_THAT(index_dataset({.definition = {.url = root_.string(), .format = webdataset},
                               .manifest = {.path = directory_ / "manifest"}},
                              {}, {})
                    .error()
                    .message,
                HasSubstr("has no .tar files"));
}

TEST_F(IndexWebdatasetTest, ReportsProgressToTheEndAndStopsOnRequest) {
    std::uint64_t bytes = 0;
    for (std::uint64_t i = 0; i < 10; ++i) {
        tar(std::to_string(i) + ".tar", test::make_samples(1000, 10, i));
        bytes += std::filesystem::file_size(root_ / (std::to_string(i) + ".tar"));
    }
    IndexProgress last;
    const IndexRequest request{.definition = {.url = root_.string()}, .manifest = {.path = directory_ / "manifest"}};
    ASSERT_TRUE(index_dataset(request,
                              [&](const IndexProgress& progress) {
                                  EXPECT_GE(progress.bytes_done, last.bytes_done);
                                  last = progress;
                              },
                              {}));
    EXPECT_EQ(last.objects_done, 10u);
    EXPECT_EQ(last.objects_total, 10u);
    EXPECT_EQ(last.bytes_done, bytes);

    std::filesystem::remove(directory_.path() / "manifest");
    std::stop_source stop;
    const auto stopped = index_dataset(request, [&](const IndexProgress&) { stop.request_stop(); }, stop.get_token());
    ASSERT_FALSE(stopped);
    EXPECT_EQ(stopped.error().code, ErrorCode::cancelled);
    EXPECT_FALSE(std::filesystem::exists(directory_.path() / "manifest"));
}

TEST_F(IndexWebdatasetTest, OversizedShardBlockErrorSuggestsABlockSize) {
    // A sparse file: its payload takes no room on disk, and the indexer never reads it.
    tar("a.tar", std::vector<NamedBytes>{{"1.bin", "x"}, {"2.bin", "x"}});
    const std::string archive = test::read_bytes(root_ / "a.tar");
    const auto with_size = [&](std::size_t header_offset, std::uint64_t bytes) {
        std::string header = archive.substr(header_offset, 512);
        char size[12];
        std::snprintf(size, sizeof size, "%011llo", static_cast<unsigned long long>(bytes));
        header.replace(124, 11, size);
        header.replace(148, 8, "        ");
        unsigned sum = 0;
        for (const char c : header) sum += static_cast<unsigned char>(c);
        char checksum[8];
        std::snprintf(checksum, sizeof checksum, "%06o", sum);
        header.replace(148, 7, checksum, 7);
        return header;
    };
    const std::uint64_t half = std::uint64_t{600} << 20;
    {
        std::filesystem::resize_file(root_ / "a.tar", 0);
        std::filesystem::resize_file(root_ / "a.tar", 2 * (half + 512));
        std::FILE* file = std::fopen((root_ / "a.tar").c_str(), "r+b");
        ASSERT_NE(file, nullptr);
        const std::string first = with_size(0, half);
        const std::string second = with_size(1024, half);
        std::fwrite(first.data(), 1, 512, file);
        std::fseek(file, static_cast<long>(half + 512), SEEK_SET);
        std::fwrite(second.data(), 1, 512, file);
        std::fclose(file);
    }
    ASSERT_EQ(error(), "no error");
    const auto too_long = index({BlockTarget::object, 0});
    ASSERT_FALSE(too_long);
    EXPECT_THAT(too_long.error().message,
                AllOf(HasSubstr("a.tar"), HasSubstr("the whole shard as one block has 1.17 GiB"),
                      HasSubstr("choose a block size")));
}

}  // namespace
}  // namespace larder::cache
