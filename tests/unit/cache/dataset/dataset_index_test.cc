// The entry point of indexing: URLs, formats, block targets.

#include "cache/dataset/dataset_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/parquet_files.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using protocol::BlockTarget;
using protocol::Format;
using ::testing::HasSubstr;

TEST(ParseBlockGoal, AcceptsSampleObjectAndSize) {
    EXPECT_EQ(parse_block_goal("sample")->target, BlockTarget::sample);
    EXPECT_EQ(parse_block_goal("object")->target, BlockTarget::object);
    EXPECT_EQ(parse_block_goal("8MiB")->target, BlockTarget::bytes);
    EXPECT_EQ(parse_block_goal("8MiB")->bytes, std::uint64_t{8} << 20);
    for (const char* text : {"", "samples", "8", "-1MiB", "0", "2GiB", "8 MiBs"}) {
        const auto goal = parse_block_goal(text);
        ASSERT_FALSE(goal) << text;
        EXPECT_THAT(goal.error().message, HasSubstr("\"" + std::string(text) + "\""));
    }
}

TEST(ParseFormat, AcceptsTheNamesOfAllFormats) {
    for (const Format format : protocol::kFormats) EXPECT_EQ(parse_format(name(format)), format);
    EXPECT_THAT(parse_format("zip").error().message,
                HasSubstr("\"zip\" is unknown; known: raw, webdataset, mds, litdata, tfrecord, megatron"));
}

TEST(IndexDataset, DetectsTheFormatFromTheFiles) {
    test::TempDirectory directory;
    const auto root = directory.path() / "data";
    const auto format = [&] {
        const auto report =
            index_dataset({.definition = {.url = root.string()}, .manifest = {.path = directory / "m"}}, {}, {});
        EXPECT_TRUE(report) << report.error().message;
        return report->definition.format;
    };
    test::write_tar(root / "deep/a.tar", test::TarDialect::ustar, test::make_samples(2, 10, 1));
    EXPECT_EQ(format(), Format::webdataset);
    test::write_file(root / ".DS_Store", "x");
    EXPECT_EQ(format(), Format::webdataset) << "hidden files do not count";
    test::write_file(root / "picture.jpg", "x");
    EXPECT_EQ(format(), Format::raw);
}

TEST(IndexDataset, ParquetIsDetectedBesideHiddenFiles) {
    test::TempDirectory directory;
    const std::string footer =
        test::parquet_footer({"a"}, {{.row_count = 3, .columns = {{.name = "a", .offset = 4, .bytes = 60}}}});
    test::write_file(directory.path() / "data/part-0.parquet", test::parquet_file(64, footer));
    test::write_file(directory.path() / "data/_SUCCESS", "x");
    test::write_file(directory.path() / "data/_temporary/part-1.parquet", "x");
    IndexRequest request{.definition = {.url = directory / "data"}, .manifest = {.path = directory / "m"}};
    const auto report = index_dataset(request, {}, {});
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->definition.format, Format::parquet);
    const auto manifest = protocol::Manifest::open(directory / "m");
    ASSERT_TRUE(manifest && manifest->check());
    EXPECT_EQ(manifest->sample_count(), 3u);
    EXPECT_EQ(manifest->block_count(), 1u);
    EXPECT_EQ(manifest->block(0).offset, 4u);
    EXPECT_FALSE(manifest->block_details(0).empty());
    test::write_file(directory.path() / "data/README.md", "x");
    const auto mixed = index_dataset(request, {}, {});
    ASSERT_TRUE(mixed) << mixed.error().message;
    EXPECT_EQ(mixed->definition.format, Format::raw);
    EXPECT_THAT(mixed->notes.back(), HasSubstr("give --format parquet"));
    request.definition.columns = {"a"};
    const auto columns_of_raw = index_dataset(request, {}, {});
    ASSERT_FALSE(columns_of_raw);
    EXPECT_THAT(columns_of_raw.error().message, HasSubstr("columns are for parquet; this dataset is raw"));
}

TEST(IndexDataset, ColumnsAreNamesSeparatedByCommas) {
    EXPECT_EQ(parse_columns("image, label").value(), (std::vector<std::string>{"image", "label"}));
    EXPECT_EQ(format_columns(std::vector<std::string>{"image", "label"}), "image,label");
    for (const char* text : {"", "a,", ",a", "a,,b", "a, ,b", "a,b,a"}) EXPECT_FALSE(parse_columns(text)) << text;
}

TEST(IndexDataset, RefusesABlockSizeForARawDataset) {
    test::TempDirectory directory;
    test::write_file(directory.path() / "data/a", "x");
    const IndexRequest request{.definition = {.url = directory / "data", .block = {BlockTarget::bytes, 1 << 20}},
                               .manifest = {.path = directory / "m"}};
    const auto report = index_dataset(request, {}, {});
    ASSERT_FALSE(report);
    EXPECT_THAT(report.error().message, HasSubstr("a block of a raw dataset is one file"));
}

TEST(IndexDataset, MissingRootErrorNamesThePath) {
    test::TempDirectory directory;
    const auto report =
        index_dataset({.definition = {.url = directory / "absent"}, .manifest = {.path = directory / "m"}}, {}, {});
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code, ErrorCode::not_found);
    EXPECT_THAT(report.error().message, HasSubstr(directory / "absent"));
}

}  // namespace
}  // namespace larder::cache
