#include "cache/dataset/survey.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Survey : public ::testing::Test {
protected:
    void write(const std::string& path, std::size_t bytes) {
        std::filesystem::create_directories(std::filesystem::path(root / path).parent_path());
        std::ofstream(root / path) << std::string(bytes, 'x');
    }
    Result<DatasetSurvey> survey(const std::string& path = "", std::optional<protocol::Format> format = {}) {
        return survey_dataset(
            {.definition = {.url = path.empty() ? root.path().string() : root / path, .format = format}}, {}, {});
    }

    test::TempDirectory root;
};

TEST_F(Survey, CountsFilesBySuffixAndNamesOddFiles) {
    for (const char* tar : {"a.tar", "b.tar", "c.tar"}) write(tar, 100);
    write("README.txt", 7);
    write("empty.tmp", 0);
    const auto found = survey();
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->format, protocol::Format::raw);
    EXPECT_EQ(found->objects, 4u);
    EXPECT_EQ(found->bytes, 307u);
    EXPECT_EQ(found->empty_objects, 1u);
    ASSERT_EQ(found->suffixes.size(), 2u);
    EXPECT_EQ(found->suffixes[0].suffix, ".tar");
    EXPECT_EQ(found->suffixes[0].objects, 3u);
    EXPECT_EQ(found->suffixes[1].bytes, 7u);
    EXPECT_THAT(found->odd_paths, ElementsAre("README.txt"));
    EXPECT_THAT(found->notes.back(), HasSubstr("give --format webdataset"));
}

TEST_F(Survey, GivenFormatIsAcceptedWithoutDoubt) {
    write("a.tar", 100);
    write("README.txt", 7);
    const auto found = survey("", protocol::Format::webdataset);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->format, protocol::Format::webdataset);
    EXPECT_EQ(found->odd_objects, 1u);
    EXPECT_THAT(found->notes, IsEmpty());
}

TEST_F(Survey, FormatWithoutFilesIsAnError) {
    write("a.png", 100);
    for (const auto format : {protocol::Format::webdataset, protocol::Format::larder, protocol::Format::mds,
                              protocol::Format::litdata, protocol::Format::megatron}) {
        const auto found = survey("", format);
        ASSERT_FALSE(found);
        EXPECT_EQ(found.error().code, ErrorCode::not_found);
        EXPECT_THAT(found.error().message,
                    HasSubstr("has no files of the format " + std::string(protocol::name(format))));
    }
    // If no file is named .tfrecord, files of any name count as records.
    EXPECT_TRUE(survey("", protocol::Format::tfrecord));
}

TEST_F(Survey, RefusesOptionsThatAddingADatasetRefuses) {
    const auto none = survey();
    ASSERT_FALSE(none);
    EXPECT_THAT(none.error().message, HasSubstr("has no files to train on"));
    write("one.tar", 10240);
    EXPECT_FALSE(survey("one.tar", protocol::Format::raw));
    const std::string url = root.path().string();
    const auto raw = protocol::Format::raw;
    const BlockGoal block{.target = protocol::BlockTarget::bytes, .bytes = 4096};
    EXPECT_FALSE(survey_dataset({.definition = {.url = url, .format = raw, .block = block}}, {}, {}));
    EXPECT_FALSE(survey_dataset({.definition = {.url = url, .format = raw, .tokens_per_sample = 5}}, {}, {}));
    EXPECT_TRUE(survey_dataset({.definition = {.url = url, .format = raw}}, {}, {}));
}

TEST_F(Survey, TreeOfFilesIsRawAndCountsTopDirectories) {
    write("cat/1.jpg", 10);
    write("dog/1.jpg", 10);
    const auto found = survey();
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->format, protocol::Format::raw);
    EXPECT_EQ(found->top_directories, 2u);
    EXPECT_EQ(found->odd_objects, 0u);
}

TEST_F(Survey, SingleTarIsADatasetButOtherFilesAreErrors) {
    write("one.tar", 10240);
    write("notes.txt", 3);
    const auto tar = survey("one.tar");
    ASSERT_TRUE(tar) << tar.error().message;
    EXPECT_EQ(tar->format, protocol::Format::webdataset);
    EXPECT_EQ(tar->objects, 1u);
    const auto text = survey("notes.txt");
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(text.error().message, (root / "notes.txt") +
                                        " is a file, and a dataset is a directory or a .tar: give "
                                        "the directory, " +
                                        root.path().string());
    const auto none = survey("none");
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().code, ErrorCode::not_found);
    EXPECT_THAT(none.error().message, HasSubstr("there is no file or directory " + (root / "none")));
}

}  // namespace
}  // namespace larder::cache
