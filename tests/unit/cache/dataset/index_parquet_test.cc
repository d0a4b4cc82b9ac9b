// Indexing of Parquet over objects in memory: row groups become blocks as the block goal says, all files must share one
// schema, and files that are no part of the table are left out. tests/python/test_parquet.py reads real files.

#include "cache/dataset/index_parquet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/protocol/format_info.h"
#include "tests/support/foreign_format_files.h"
#include "tests/support/parquet_files.h"

namespace larder::cache {
namespace {

using protocol::BlockTarget;
using test::MemorySource;
using test::RowGroupText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Three row groups: the second follows the first at once, the third after a gap.
const std::vector<RowGroupText> kGroups{
    {.row_count = 7, .columns = {{.name = "a", .offset = 4, .bytes = 96}, {.name = "b", .offset = 100, .bytes = 50}}},
    {.row_count = 5, .columns = {{.name = "a", .offset = 150, .bytes = 10}, {.name = "b", .offset = 160, .bytes = 40}}},
    {.row_count = 2,
     .columns = {{.name = "a", .offset = 210, .bytes = 10}, {.name = "b", .offset = 230, .bytes = 10}}}};

struct IndexedTable {
    DatasetContent content;
    std::vector<std::string> notes;
    Result<void> result;
};

IndexedTable index_table(MemorySource& source, const BlockGoal& goal = {}, std::vector<std::string> columns = {}) {
    IndexedTable indexed;
    indexed.result = index_parquet(source, goal, columns, indexed.content, indexed.notes, {}, {});
    return indexed;
}

std::string table_file(const std::vector<std::string>& names = {"a", "b"},
                       const std::vector<RowGroupText>& groups = kGroups) {
    return test::parquet_file(240, test::parquet_footer(names, groups));
}

std::vector<std::string> blocks_of(const DatasetContent& content) {
    std::vector<std::string> blocks;
    for (const auto& block : content.blocks) {
        blocks.push_back(std::to_string(block.offset) + "+" + std::to_string(block.length) + " rows " +
                         std::to_string(block.sample_count));
    }
    return blocks;
}

TEST(IndexParquet, RowGroupsAreBlocksAsTheGoalSays) {
    MemorySource source;
    source.objects["t.parquet"] = table_file();
    const auto blocks_by = [&](const BlockGoal& goal) {
        const IndexedTable indexed = index_table(source, goal);
        EXPECT_TRUE(indexed.result) << indexed.result.error().message;
        EXPECT_TRUE(indexed.content.samples_by_ordinal);
        EXPECT_EQ(indexed.content.block_details.size(), indexed.content.blocks.size());
        return blocks_of(indexed.content);
    };
    const auto each = ElementsAre("4+146 rows 7", "150+50 rows 5", "210+30 rows 2");
    EXPECT_THAT(blocks_by({BlockTarget::sample, 0}), each);
    EXPECT_THAT(blocks_by({BlockTarget::bytes, 195}), each);
    EXPECT_THAT(blocks_by({BlockTarget::bytes, 196}), ElementsAre("4+196 rows 12", "210+30 rows 2"));
    EXPECT_THAT(blocks_by({BlockTarget::bytes, 1 << 20}), ElementsAre("4+196 rows 12", "210+30 rows 2"))
        << "what lies in a gap is not fetched for the sake of larger blocks";
    EXPECT_THAT(blocks_by({BlockTarget::object, 0}), ElementsAre("4+236 rows 14"));
}

TEST(IndexParquet, ChosenColumnsAloneAreInBlocks) {
    MemorySource source;
    source.objects["t.parquet"] = table_file();
    const IndexedTable indexed = index_table(source, {}, {"b"});
    ASSERT_TRUE(indexed.result) << indexed.result.error().message;
    EXPECT_THAT(blocks_of(indexed.content), ElementsAre("100+50 rows 7", "160+40 rows 5", "230+10 rows 2"));
    const auto info = protocol::parse_format_info(std::as_bytes(std::span(indexed.content.format_info)));
    ASSERT_TRUE(info && info->columns.size() == 1);
    EXPECT_EQ(info->columns[0].name, "b");
    EXPECT_TRUE(indexed.notes.empty());
}

TEST(IndexParquet, BytesBetweenChosenColumnsAreNoted) {
    MemorySource source;
    std::vector<RowGroupText> groups = kGroups;
    for (RowGroupText& group : groups) {
        const auto& first = group.columns[0];
        group.columns.insert(group.columns.begin() + 1,
                             {.name = "x", .offset = first.offset + first.bytes - 4, .bytes = 4});
        group.columns[0].bytes -= 4;
    }
    source.objects["t.parquet"] = table_file({"a", "x", "b"}, groups);
    const IndexedTable indexed = index_table(source, {}, {"a", "b"});
    ASSERT_TRUE(indexed.result) << indexed.result.error().message;
    ASSERT_EQ(indexed.notes.size(), 1u);
    // 22 bytes: four of x in each row group, and the ten between the columns of the third.
    EXPECT_EQ(indexed.notes[0],
              "the chosen columns have 204 B; 22 B that lie between them are fetched and cached as well");
}

TEST(IndexParquet, FilesThatAreNoPartOfTheTableAreLeftOut) {
    MemorySource source;
    source.objects["year=2024/part-0.snappy.parquet"] = table_file();
    source.objects["year=2025/part-0.snappy.parquet"] = table_file();
    source.objects["_metadata"] = "x";
    source.objects["_temporary/part-1.parquet"] = "x";
    source.objects["year=2024/.part-0.snappy.parquet.crc"] = "x";
    source.objects["README.md"] = "x";
    const IndexedTable indexed = index_table(source);
    ASSERT_TRUE(indexed.result) << indexed.result.error().message;
    EXPECT_EQ(indexed.content.objects.size(), 2u);
    EXPECT_EQ(indexed.content.sample_count(), 28u);
    EXPECT_THAT(indexed.notes, ElementsAre("left out 1 file(s) that are not called .parquet"));
}

TEST(IndexParquet, ErrorsNameTheFile) {
    MemorySource source;
    source.objects["a.parquet"] = table_file();
    source.objects["b.parquet"] = table_file({"a", "c"});
    const auto error = [&] {
        const IndexedTable indexed = index_table(source);
        return indexed.result ? "no error" : indexed.result.error().message;
    };
    EXPECT_THAT(error(), HasSubstr("b.parquet has another schema than a.parquet"));
    source.objects["b.parquet"] = "PAR1";
    EXPECT_EQ(error(), "b.parquet: it is too short for a Parquet file");
    source.objects["b.parquet"] = table_file() + "x";
    EXPECT_EQ(error(), "b.parquet: it does not end with PAR1: it is no Parquet file");
    source.objects["b.parquet"] = table_file();
    source.objects["_delta_log/00.json"] = "{}";
    EXPECT_THAT(error(), HasSubstr("_delta_log/00.json: this is a Delta Lake table"));
}

TEST(IndexParquet, FooterLargerThanTheFirstReadIsReadWhole) {
    MemorySource source;
    std::vector<RowGroupText> groups;
    for (std::uint64_t i = 0; i < 4000; ++i) {
        groups.push_back({.row_count = 1, .columns = {{.name = "a", .offset = 4 + i, .bytes = 1}}});
    }
    const std::string footer = test::parquet_footer({"a"}, groups);
    ASSERT_GT(footer.size(), 65536u);
    source.objects["t.parquet"] = test::parquet_file(5000, footer);
    const IndexedTable indexed = index_table(source);
    ASSERT_TRUE(indexed.result) << indexed.result.error().message;
    EXPECT_EQ(indexed.content.sample_count(), 4000u);
}

}  // namespace
}  // namespace larder::cache
