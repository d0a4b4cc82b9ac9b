// Parquet's footer: chunks are found where it says, a block is told to Arrow with offsets of its own, and hostile
// claims are errors.

#include "cache/protocol/parquet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/parquet_files.h"
#include "tests/support/text.h"

namespace larder::protocol {

using test::as_bytes;
namespace {

using test::parquet_footer;
using test::RowGroupText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kDataEnd = 1000;

const std::vector<RowGroupText> kTwoGroups{
    {.row_count = 7,
     .columns = {{.name = "a", .dictionary_offset = 4, .offset = 30, .bytes = 96},
                 {.name = "b", .offset = 100, .bytes = 50}}},
    {.row_count = 5,
     .columns = {{.name = "a", .offset = 150, .bytes = 10}, {.name = "b", .offset = 200, .bytes = 20}}}};

Result<ParquetFooter> parse(const std::string& footer, const std::vector<std::string>& columns = {}) {
    return parse_parquet_footer(as_bytes(footer), kDataEnd, columns);
}

std::string footer_error(const std::string& footer, const std::vector<std::string>& columns = {}) {
    const auto parsed = parse(footer, columns);
    return parsed ? "no error" : parsed.error().message;
}

TEST(ParquetFooter, RowGroupsSpanTheirColumns) {
    const auto footer = parse(parquet_footer({"a", "b"}, kTwoGroups));
    ASSERT_TRUE(footer) << footer.error().message;
    EXPECT_THAT(footer->columns, ElementsAre("a", "b"));
    ASSERT_EQ(footer->row_groups.size(), 2u);
    const ParquetRowGroup& first = footer->row_groups[0];
    EXPECT_EQ(first.row_count, 7u);
    EXPECT_EQ(first.begin, 4u) << "a chunk begins with its dictionary";
    EXPECT_EQ(first.end, 150u);
    EXPECT_EQ(footer->row_groups[1].begin, 150u);
    EXPECT_EQ(footer->row_groups[1].end, 220u);
}

TEST(ParquetFooter, ChosenColumnNarrowsRowGroups) {
    const auto footer = parse(parquet_footer({"a", "b"}, kTwoGroups), {"b"});
    ASSERT_TRUE(footer) << footer.error().message;
    EXPECT_THAT(footer->columns, ElementsAre("b"));
    EXPECT_EQ(footer->row_groups[0].begin, 100u);
    EXPECT_EQ(footer->row_groups[0].end, 150u);
    EXPECT_FALSE(footer->row_groups[0].chunks[0].is_chosen);
    EXPECT_TRUE(footer->row_groups[0].chunks[1].is_chosen);
    EXPECT_EQ(footer_error(parquet_footer({"a", "b"}, kTwoGroups), {"c"}),
              "it has no column \"c\"; its columns are a, b");
}

TEST(ParquetFooter, RowGroupsWithoutRowsAreLeftOut) {
    std::vector<RowGroupText> groups = kTwoGroups;
    groups[0].row_count = 0;
    const auto footer = parse(parquet_footer({"a", "b"}, groups));
    ASSERT_TRUE(footer) << footer.error().message;
    EXPECT_EQ(footer->row_groups.size(), 1u);
}

// The client's footer is read back by the same parser, as if the block were a file.
TEST(ParquetFooter, FooterOfABlockCountsOffsetsFromItsBegin) {
    const auto footer = parse(parquet_footer({"a", "b"}, kTwoGroups), {"b"});
    ASSERT_TRUE(footer) << footer.error().message;
    const auto groups = std::span(footer->row_groups).subspan(1);
    // The parser wants the four bytes of the magic before the data, so the block begins four bytes earlier here.
    const std::string details = encode_row_groups(groups, 196);
    const auto file = parquet_footer_file(as_bytes(footer->head), as_bytes(details), 5);
    ASSERT_TRUE(file) << file.error().message;
    const auto bytes = parquet_footer_bytes(as_bytes(file->substr(file->size() - 8)), file->size());
    ASSERT_TRUE(bytes) << bytes.error().message;
    ASSERT_EQ(*bytes, file->size() - 12);
    const auto again = parse_parquet_footer(as_bytes(file->substr(4, *bytes)), 24, std::vector<std::string>{"b"});
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(again->schema, footer->schema);
    EXPECT_EQ(again->head, footer->head);
    ASSERT_EQ(again->row_groups.size(), 1u);
    EXPECT_EQ(again->row_groups[0].row_count, 5u);
    EXPECT_EQ(again->row_groups[0].chunks[0].bytes, 0u) << "the column that was not chosen";
    EXPECT_EQ(again->row_groups[0].chunks[0].value_count, 5u);
    EXPECT_EQ(again->row_groups[0].chunks[1].offset, 4u);
    EXPECT_EQ(again->row_groups[0].chunks[1].bytes, 20u);
    EXPECT_EQ(again->row_groups[0].chunks[1].raw_bytes, 40u);
    EXPECT_EQ(again->row_groups[0].chunks[1].codec, 1u);
}

TEST(ParquetFooter, OnlyArrowsSchemaIsKeptOfTheKeyValues) {
    std::string extra;
    CompactWriter out(extra);
    out.field(4, 5, CompactType::list);
    out.list_head(CompactType::structure, 2);
    for (const char* key : {"ARROW:schema", "pandas"}) {
        test::put_text(extra, 0, 1, key);
        test::put_text(extra, 1, 2, std::string("value of ") + key);
        out.end_struct();
    }
    test::put_text(extra, 5, 6, "a writer");
    const auto footer = parse(parquet_footer({"a", "b"}, kTwoGroups, extra));
    ASSERT_TRUE(footer) << footer.error().message;
    EXPECT_THAT(footer->head, HasSubstr("value of ARROW:schema"));
    EXPECT_THAT(footer->head, HasSubstr("a writer"));
    EXPECT_THAT(footer->head, ::testing::Not(HasSubstr("pandas")));
}

TEST(ParquetFooter, ClaimsOutsideTheFileAreErrors) {
    std::vector<RowGroupText> groups = kTwoGroups;
    groups[1].columns[1].bytes = 801;
    EXPECT_THAT(footer_error(parquet_footer({"a", "b"}, groups)), HasSubstr("row group 1: the footer: at byte "));
    EXPECT_THAT(footer_error(parquet_footer({"a", "b"}, groups)),
                HasSubstr("a column's 801 bytes at offset 200 do not lie before the footer"));
    groups[1].columns[1] = {.name = "b", .offset = UINT64_MAX / 2, .bytes = UINT64_MAX / 4};
    EXPECT_THAT(footer_error(parquet_footer({"a", "b"}, groups)), HasSubstr("do not lie before the footer"));
    groups[1].columns[1] = {.name = "b", .offset = 0, .bytes = 4};
    EXPECT_THAT(footer_error(parquet_footer({"a", "b"}, groups)), HasSubstr("do not lie before the footer"));
    groups[1].columns[1] = {.name = "b", .offset = UINT64_MAX, .bytes = 4};
    EXPECT_THAT(footer_error(parquet_footer({"a", "b"}, groups)), HasSubstr("a number is negative"));
    groups = kTwoGroups;
    groups[1].columns[0].offset = 149;
    EXPECT_EQ(footer_error(parquet_footer({"a", "b"}, groups)), "row group 1 begins before the one before it ends");
    groups[0].row_count = -1;
    EXPECT_THAT(footer_error(parquet_footer({"a", "b"}, groups)), HasSubstr("-1 rows are out of range"));
}

// Otherwise rows that the footer does not count are never read, or Arrow takes memory for values that are not there.
TEST(ParquetFooter, ValuesThatAreNotOnePerRowAreErrors) {
    std::vector<RowGroupText> groups = kTwoGroups;
    const auto with_values = [&](std::int64_t count, std::int64_t repetition = 0) {
        groups[1].columns[1].value_count = count;
        return footer_error(parquet_footer({"a", "b"}, groups, {}, repetition));
    };
    EXPECT_THAT(with_values(4), HasSubstr("a column has 4 values for 5 rows"));
    EXPECT_THAT(with_values(6), HasSubstr("a column has 6 values for 5 rows"));
    EXPECT_THAT(with_values(std::int64_t{1} << 31), HasSubstr("a column has 2147483648 values for 5 rows"));
    EXPECT_EQ(with_values(5), "no error");
    EXPECT_THAT(with_values(6, 1), HasSubstr("a column has 6 values for 5 rows")) << "optional: a null is a value";
    EXPECT_EQ(with_values(6, 2), "no error") << "a list's items";
    EXPECT_THAT(with_values(4, 2), HasSubstr("a column has 4 values for 5 rows"));
    groups[1].row_count = 0;
    EXPECT_THAT(with_values(5), HasSubstr("a column has 5 values for 0 rows"));
    EXPECT_THAT(with_values(5, 2), HasSubstr("a column has 5 values for 0 rows"));
}

TEST(ParquetFooter, RowGroupsThatDoNotFitTheSchemaAreErrors) {
    EXPECT_THAT(footer_error(parquet_footer({"a"}, kTwoGroups)), HasSubstr("it has 2 columns, the schema 1"));
    EXPECT_THAT(footer_error(parquet_footer({}, {})), HasSubstr("its row groups come before its schema"));
    std::string more_children = parquet_footer({"a", "b"}, kTwoGroups);
    const std::size_t count = more_children.find("schema") + 7;
    ASSERT_EQ(more_children[count], 4) << "2 children, as zigzag";
    more_children[count] = 6;
    EXPECT_THAT(footer_error(more_children), HasSubstr("the schema lacks elements"));
    more_children[count] = 2;
    EXPECT_THAT(footer_error(more_children), HasSubstr("the schema has more than one root"));
}

TEST(ParquetFooter, EveryTruncationIsAnError) {
    const std::string footer = parquet_footer({"a", "b"}, kTwoGroups);
    for (std::size_t bytes = 0; bytes < footer.size(); ++bytes) {
        EXPECT_NE(footer_error(footer.substr(0, bytes)), "no error") << bytes;
    }
}

TEST(ParquetFooter, ListOfMoreItemsThanBytesIsAnError) {
    std::string footer;
    CompactWriter out(footer);
    out.field(0, 2, CompactType::list);
    out.list_head(CompactType::structure, 0xffffffff);
    EXPECT_THAT(footer_error(footer), HasSubstr("a list claims more items than there are bytes"));
}

TEST(ParquetFooter, SchemaOfTooManyElementsIsAnError) {
    std::string footer;
    CompactWriter out(footer);
    out.field(0, 2, CompactType::list);
    out.list_head(CompactType::structure, 65537);
    test::put_text(footer, 0, 4, "schema");
    out.integer(4, 5, CompactType::i32, 65536);
    out.end_struct();
    footer += std::string(65536, '\0');
    EXPECT_EQ(footer_error(footer), "its schema has 65537 elements; at most 65536 are read");
}

// The errors are answers in JSON.
TEST(ParquetFooter, NamesAreUtf8InErrorsToo) {
    const auto groups_of = [](const std::string& name) {
        return std::vector<RowGroupText>{{.row_count = 1, .columns = {{.name = name, .offset = 4, .bytes = 1}}}};
    };
    EXPECT_EQ(footer_error(parquet_footer({"caf\xe9"}, groups_of("caf\xe9"))), "the name of a column is not UTF-8");
    const std::string euros = std::string(63, 'x') + "\xe2\x82\xac";
    EXPECT_EQ(footer_error(parquet_footer({euros}, groups_of(euros)), {"c"}),
              "it has no column \"c\"; its columns are " + std::string(63, 'x'));
}

TEST(ParquetFooter, ColumnsOfOneNameAreAnErrorIfChosen) {
    std::vector<RowGroupText> groups{{.row_count = 1,
                                      .columns = {{.name = "a", .offset = 4, .bytes = 1},
                                                  {.name = "b", .offset = 5, .bytes = 1},
                                                  {.name = "a", .offset = 6, .bytes = 1}}}};
    const std::string footer = parquet_footer({"a", "b", "a"}, groups);
    EXPECT_THAT(footer_error(footer), HasSubstr("it has more than one column \"a\""));
    EXPECT_THAT(footer_error(footer, {"a"}), HasSubstr("it has more than one column \"a\""));
    EXPECT_EQ(footer_error(footer, {"b"}), "no error");
}

TEST(ParquetFooter, DeepNestingIsAnError) {
    std::string footer = "\x1c";  // field 1, a struct
    footer += std::string(100'000, '\x1c');
    EXPECT_THAT(footer_error(footer), HasSubstr("another type than parquet.thrift says"));
    footer[0] = '\x7c';  // field 7, which is skipped
    EXPECT_THAT(footer_error(footer), HasSubstr("it is nested too deeply"));
}

TEST(ParquetFooter, TailSaysWhatAFileIs) {
    const auto tail_error = [](std::string_view tail, std::uint64_t file_bytes) {
        const auto bytes = parquet_footer_bytes(as_bytes(std::string(tail)), file_bytes);
        return bytes ? std::to_string(*bytes) : bytes.error().message;
    };
    using namespace std::string_view_literals;
    EXPECT_EQ(tail_error("\x10\0\0\0PAR1"sv, 28), "16");
    EXPECT_THAT(tail_error("\x10\0\0\0PAR1"sv, 27), HasSubstr("should have 16 bytes, more than the file has"));
    EXPECT_EQ(tail_error("\x10\0\0\0PARE"sv, 28), "its footer is encrypted");
    EXPECT_EQ(tail_error("\x10\0\0\0ABCD"sv, 28), "it does not end with PAR1: it is no Parquet file");
    EXPECT_THAT(tail_error("\0\0\0\x7fPAR1"sv, UINT64_MAX), HasSubstr("at most 67108864 are read"));
}

TEST(ParquetFooter, HeadThatIsCutOffIsAnError) {
    EXPECT_FALSE(parquet_footer_file(as_bytes("abc"), {}, 1));
    EXPECT_FALSE(parquet_footer_file(as_bytes(std::string("\xff\0\0\0ab", 6)), {}, 1));
}

}  // namespace
}  // namespace larder::protocol
