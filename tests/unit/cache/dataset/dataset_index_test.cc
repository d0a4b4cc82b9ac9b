// The entry point of indexing: URLs, formats, block targets.

#include "cache/dataset/dataset_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(IndexDataset, RefusesParquetUnlessTheFormatIsRaw) {
    test::TempDirectory directory;
    test::write_file(directory.path() / "data/part-0.parquet", "PAR1");
    test::write_file(directory.path() / "data/_SUCCESS", "x");
    IndexRequest request{.definition = {.url = directory / "data"}, .manifest = {.path = directory / "m"}};
    const auto refused = index_dataset(request, {}, {});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
    EXPECT_THAT(refused.error().message, HasSubstr("part-0.parquet: Parquet is not supported"));
    request.definition.format = Format::raw;
    EXPECT_TRUE(index_dataset(request, {}, {}));
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
