// Indexing of LitData chunks that end in an Arrow table, over objects in memory: batches become blocks as the block
// goal says, each with the schema of its chunk, and what does not fit is refused. tests/python/test_litdata_rows.py
// reads chunks that LitData wrote.

#include "cache/dataset/index_litdata_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/dataset/index_litdata.h"
#include "cache/dataset/index_memory.h"
#include "cache/protocol/format_info.h"
#include "tests/support/arrow_files.h"
#include "tests/support/foreign_format_files.h"
#include "tests/support/memory_source.h"

namespace larder::cache {
namespace {

using protocol::BlockTarget;
using test::MemorySource;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string rows_index_json(const std::vector<std::pair<std::string, int>>& chunks,
                            const std::string& columns = "a, b") {
    std::string list;
    for (const auto& [name, samples] : chunks) {
        list += list.empty() ? "" : ",";
        list += R"({"chunk_bytes": 1, "chunk_size": )" + std::to_string(samples) + R"(, "filename": ")" + name + "\"}";
    }
    std::string context;
    std::string children;
    for (std::size_t at = 0; at < columns.size(); at += 3) {
        context += std::string(context.empty() ? "" : ", ") + R"(\\\")" + columns[at] + R"(\\\")";
        children +=
            std::string(children.empty() ? "" : ", ") + R"({\"type\": null, \"context\": null, \"children_spec\": []})";
    }
    return R"({"chunks": [)" + list + R"(], "config": {"compression": null, "data_format": ["int", "pickle"],)" +
           R"("data_spec": "[1, {\"type\": \"builtins.dict\", \"context\": \"[)" + context +
           R"(]\", \"children_spec\": [)" + children + R"(]}]", "encryption": null, "ipc_compression": "zstd",)" +
           R"("item_loader": "PyTreeLoader"}})";
}

struct IndexedRows {
    DatasetContent content;
    std::vector<std::string> notes;
    Result<void> result;
};

IndexedRows index_rows(MemorySource& source, const BlockGoal& goal = {}, std::uint32_t tokens = 0) {
    IndexedRows indexed;
    indexed.result = index_litdata(source, goal, tokens, indexed.content, indexed.notes, {}, {});
    return indexed;
}

std::string rows_error(MemorySource& source) {
    const IndexedRows indexed = index_rows(source);
    return indexed.result ? "no error" : indexed.result.error().message;
}

// Places count from the chunk's Arrow file.
std::vector<std::string> row_blocks(const DatasetContent& content, std::uint64_t arrow_begin) {
    std::vector<std::string> blocks;
    for (const auto& block : content.blocks) {
        blocks.push_back(std::to_string(block.offset - arrow_begin) + "+" + std::to_string(block.length) + " rows " +
                         std::to_string(block.sample_count));
    }
    return blocks;
}

TEST(IndexLitdataRows, BatchesAreBlocksAsTheGoalSays) {
    MemorySource source;
    source.objects["index.json"] = rows_index_json({{"c.bin", 600}});
    source.objects["c.bin"] = test::row_chunk(600, test::arrow_file({16, 32, 8}));
    const auto blocks_by = [&](const BlockGoal& goal) {
        const IndexedRows indexed = index_rows(source, goal);
        EXPECT_TRUE(indexed.result) << indexed.result.error().message;
        EXPECT_TRUE(indexed.content.samples_by_ordinal);
        const std::string schema("\xff\xff\xff\xff\x08\0\0\0a schema", 16);
        EXPECT_THAT(indexed.content.block_details, ::testing::Each(schema));
        EXPECT_EQ(indexed.content.block_details.size(), indexed.content.blocks.size());
        return row_blocks(indexed.content, 4 * 602);
    };
    const auto each = ElementsAre("24+16 rows 256", "40+32 rows 256", "72+8 rows 88");
    EXPECT_THAT(blocks_by({BlockTarget::sample, 0}), each);
    EXPECT_THAT(blocks_by({BlockTarget::bytes, 39}), each);
    EXPECT_THAT(blocks_by({BlockTarget::bytes, 48}), ElementsAre("24+48 rows 512", "72+8 rows 88"));
    EXPECT_THAT(blocks_by({BlockTarget::object, 0}), ElementsAre("24+56 rows 600"));
}

TEST(IndexLitdataRows, ColumnsAreThoseOfAllParts) {
    MemorySource source;
    source.objects["x/index.json"] = rows_index_json({{"c.bin", 1}}, "a, b");
    source.objects["y/index.json"] = rows_index_json({{"c.bin", 2}}, "b, c");
    source.objects["x/c.bin"] = test::row_chunk(1, test::arrow_file({16}));
    source.objects["y/c.bin"] = test::row_chunk(2, test::arrow_file({16}));
    const IndexedRows indexed = index_rows(source);
    ASSERT_TRUE(indexed.result) << indexed.result.error().message;
    const auto info = protocol::parse_format_info(std::as_bytes(std::span(indexed.content.format_info)));
    ASSERT_TRUE(info);
    std::vector<std::string> names;
    for (const auto& column : info->columns) names.push_back(column.name + " " + column.encoding);
    EXPECT_THAT(names, ElementsAre("a arrow", "b arrow", "c arrow"));
    EXPECT_EQ(info->structure, "");
}

TEST(IndexLitdataRows, ChunksWithAndWithoutATableAreNotMixed) {
    MemorySource source;
    source.objects["index.json"] = rows_index_json({{"1.bin", 1}, {"2.bin", 1}});
    source.objects["1.bin"] = test::row_chunk(1, test::arrow_file({16}));
    source.objects["2.bin"] = test::table_file({test::sized_fields({"a", "b"})});
    EXPECT_THAT(rows_error(source), HasSubstr("2.bin: it does not end in an Arrow table"));
    std::string& index = source.objects["index.json"];
    index.replace(index.find("pickle"), 6, "string");
    std::swap(source.objects["1.bin"], source.objects["2.bin"]);
    EXPECT_THAT(rows_error(source),
                HasSubstr("2.bin: its samples lie in an Arrow table, but those of the dataset's first"));
}

TEST(IndexLitdataRows, WhatDoesNotFitIsRefusedWithItsFile) {
    MemorySource source;
    source.objects["index.json"] = rows_index_json({{"c.bin", 257}});
    const auto error_with = [&](std::string chunk) {
        source.objects["c.bin"] = std::move(chunk);
        return rows_error(source);
    };
    EXPECT_EQ(error_with(test::row_chunk(257, test::arrow_file({16, 16}))), "no error");
    EXPECT_THAT(error_with(test::row_chunk(256, test::arrow_file({16, 16}))),
                HasSubstr("c.bin: at offset 0: it holds 256 samples, but its index says 257"));
    EXPECT_THAT(error_with(test::row_chunk(257, test::arrow_file({16}))),
                HasSubstr("c.bin: its Arrow file has 1 batches; LitData writes one for every 256"));
    EXPECT_THAT(error_with(test::row_chunk(257, test::arrow_file({16, 16, 16}))), HasSubstr("has 3 batches"));
    EXPECT_THAT(error_with(test::row_chunk(257, test::arrow_file({16, 16}) + "X")),
                HasSubstr("c.bin: its Arrow file, which begins at 1036: at offset"));
    EXPECT_THAT(error_with(test::number_bytes(std::uint32_t{257}) + test::arrow_file({16, 16}) +
                           test::number_bytes(std::uint32_t{100}) + std::string("LDARW01\0", 8)),
                HasSubstr("cannot end in an Arrow file of 100 bytes"));
    const IndexedRows with_tokens = index_rows(source, {}, 2);
    ASSERT_FALSE(with_tokens.result);
    EXPECT_THAT(with_tokens.result.error().message, HasSubstr("tokens per sample are for datasets of tokens"));
}

// Otherwise a chunk of a few MiB would have the indexer write a long schema millions of times.
TEST(IndexLitdataRows, SchemasCountAsMemoryBeforeTheyAreRepeated) {
    const std::string chunk = test::row_chunk(600, test::arrow_file({16, 32, 8}));
    test::MemoryReader reader(chunk);
    IndexedObject object{.path = "c", .size_bytes = chunk.size()};
    std::uint64_t counted = 0;
    const auto indexed = index_row_chunk(reader, 600, {}, object, [&](std::uint64_t, std::uint64_t bytes) {
        counted = bytes;
        EXPECT_TRUE(object.block_details.empty());
        return Result<void>(fail(ErrorCode::unsupported, "too much"));
    });
    ASSERT_FALSE(indexed);
    EXPECT_EQ(indexed.error().message, "too much");
    EXPECT_GE(counted, index_bytes(object) + 3 * 16);
}

}  // namespace
}  // namespace larder::cache
