// Arrow's IPC files: batches and the schema are found where the footer says, and hostile footers are refused at their
// offset. tests/python/test_litdata_rows.py reads files that Arrow wrote.

#include "cache/protocol/arrow_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/arrow_files.h"

namespace larder::protocol {
namespace {

using test::ArrowBatchText;
using ::testing::HasSubstr;

std::span<const std::byte> arrow_bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text));
}

std::string arrow_footer_error(const std::string& footer, std::uint64_t footer_offset = 1000) {
    const auto batches = parse_arrow_footer(arrow_bytes_of(footer), footer_offset);
    return batches ? "no error" : batches.error().message;
}

TEST(ArrowFile, BatchesAndSchemaAreWhereTheFooterSays) {
    const std::string file = test::arrow_file({16, 32, 8});
    const auto footer_bytes = arrow_footer_bytes(arrow_bytes_of(file).last(kArrowTailBytes), file.size());
    ASSERT_TRUE(footer_bytes) << footer_bytes.error().message;
    const std::uint64_t footer_offset = file.size() - kArrowTailBytes - *footer_bytes;
    const auto batches = parse_arrow_footer(arrow_bytes_of(file).subspan(footer_offset, *footer_bytes), footer_offset);
    ASSERT_TRUE(batches) << batches.error().message;
    ASSERT_EQ(batches->size(), 3u);
    EXPECT_EQ((*batches)[1].offset, 40u);
    EXPECT_EQ((*batches)[1].bytes, 32u);
    EXPECT_EQ((*batches)[2].offset + (*batches)[2].bytes, footer_offset);
    const auto schema = arrow_schema_bytes(arrow_bytes_of(file).subspan(kArrowSchemaOffset), batches->front().offset);
    ASSERT_TRUE(schema) << schema.error().message;
    EXPECT_EQ(*schema, 16u);
}

TEST(ArrowFile, TailThatDoesNotFitTheFileIsRefused) {
    const auto error_with = [](const std::string& tail, std::uint64_t file_bytes) {
        const auto bytes = arrow_footer_bytes(arrow_bytes_of(tail), file_bytes);
        return bytes ? "no error" : bytes.error().message;
    };
    EXPECT_EQ(error_with(test::number_bytes(std::int32_t{82}) + "ARROW1", 100), "no error");
    EXPECT_THAT(error_with(test::number_bytes(std::int32_t{83}) + "ARROW1", 100), HasSubstr("at offset 90"));
    EXPECT_THAT(error_with(test::number_bytes(std::int32_t{-1}) + "ARROW1", 100), HasSubstr("at offset 90"));
    EXPECT_THAT(error_with(test::number_bytes(std::int32_t{0}) + "ARROW1", 100), HasSubstr("at offset 90"));
    EXPECT_THAT(error_with(test::number_bytes(std::int32_t{8}) + "ARROW2", 100), HasSubstr("at offset 94"));
}

TEST(ArrowFile, BatchesOutsideTheFileOrOverEachOtherAreRefused) {
    const ArrowBatchText good{.offset = 24, .head_bytes = 8, .body_bytes = 968};
    EXPECT_EQ(arrow_footer_error(test::arrow_footer({good})), "no error");
    const auto with = [&](const auto& change) {
        ArrowBatchText bad = good;
        change(bad);
        return arrow_footer_error(test::arrow_footer({bad}));
    };
    const auto refused = HasSubstr("at offset 1000: the footer of the Arrow file, which begins here, has batch 0");
    EXPECT_THAT(with([](auto& batch) { batch.body_bytes = 976; }), refused);
    EXPECT_THAT(with([](auto& batch) { batch.body_bytes = -8; }), refused);
    EXPECT_THAT(with([](auto& batch) { batch.head_bytes = 0; }), refused);
    EXPECT_THAT(with([](auto& batch) { batch.head_bytes = -8; }), refused);
    EXPECT_THAT(with([](auto& batch) { batch.offset = 8; }), refused) << "over the schema";
    EXPECT_THAT(with([](auto& batch) { batch.offset = 25; }), refused) << "Arrow aligns messages";
    EXPECT_THAT(with([](auto& batch) { batch.offset = INT64_MIN; }), refused);
    EXPECT_THAT(arrow_footer_error(test::arrow_footer({good, good})), HasSubstr("has batch 1 at offset 24"));
}

TEST(ArrowFile, DictionariesAreRefused) {
    const ArrowBatchText place{.offset = 24, .head_bytes = 8, .body_bytes = 8};
    EXPECT_THAT(arrow_footer_error(test::arrow_footer({place}, {place})), HasSubstr("dictionaries"));
}

TEST(ArrowFile, CutOffFootersAreRefused) {
    const std::string footer = test::arrow_footer({{.offset = 24, .head_bytes = 8, .body_bytes = 8}});
    for (std::size_t bytes = 0; bytes + 4 < footer.size(); ++bytes) {
        EXPECT_THAT(arrow_footer_error(footer.substr(0, bytes)), HasSubstr("at offset 1000")) << bytes;
    }
}

TEST(ArrowFile, SchemaThatDoesNotFitBeforeTheFirstBatchIsRefused) {
    const auto error_with = [](std::uint32_t start, std::int32_t length, std::uint64_t end) {
        const std::string head = test::number_bytes(start) + test::number_bytes(length);
        const auto bytes = arrow_schema_bytes(arrow_bytes_of(head), end);
        return bytes ? "no error" : bytes.error().message;
    };
    EXPECT_EQ(error_with(0xffffffff, 8, 24), "no error");
    EXPECT_THAT(error_with(0xffffffff, 8, 23), HasSubstr("at offset 8"));
    EXPECT_THAT(error_with(0xffffffff, 0, 24), HasSubstr("at offset 8"));
    EXPECT_THAT(error_with(0xffffffff, -8, 24), HasSubstr("at offset 8"));
    EXPECT_THAT(error_with(8, 8, 24), HasSubstr("at offset 8"));
    EXPECT_THAT(error_with(0xffffffff, 2 << 20, std::uint64_t{4} << 20), HasSubstr("at most 1048576"));
}

}  // namespace
}  // namespace larder::protocol
