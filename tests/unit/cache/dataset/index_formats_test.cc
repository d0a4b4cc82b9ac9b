// Indexing of MDS, LitData, TFRecord and Megatron over objects in memory. Every sample maps to its bytes under every
// block goal, indexing reads no more than it must, and errors name the file. tests/python/test_formats.py reads files
// that the formats' own writers made.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include "cache/dataset/detect_format.h"
#include "cache/dataset/index_litdata.h"
#include "cache/dataset/index_mds.h"
#include "cache/dataset/index_megatron.h"
#include "cache/dataset/index_tfrecord.h"
#include "cache/protocol/format_info.h"
#include "tests/support/foreign_format_files.h"

namespace larder::cache {
namespace {

using protocol::BlockTarget;
using test::MemorySource;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<BlockGoal> kGoals{{BlockTarget::sample, 0},
                                    {BlockTarget::object, 0},
                                    {BlockTarget::bytes, 1},
                                    {BlockTarget::bytes, 100},
                                    {BlockTarget::bytes, 1 << 20}};

// The bytes at each sample's extents.
std::vector<std::string> samples_of(const MemorySource& source, const DatasetContent& content) {
    std::vector<std::string> samples;
    for (const auto& object : content.objects) {
        const std::string& bytes = source.objects.at(std::string(content.name(object)));
        EXPECT_EQ(object.size_bytes, bytes.size());
        for (std::uint32_t i = 0; i < object.block_count; ++i) {
            const auto& block = content.blocks[object.first_block + i];
            const std::string block_bytes = bytes.substr(block.offset, block.length);
            for (std::uint32_t j = 0; j < block.sample_count; ++j) {
                const auto& sample = content.samples[block.first_sample + j];
                EXPECT_LE(sample.offset + sample.length, block_bytes.size());
                samples.push_back(block_bytes.substr(sample.offset, sample.length));
            }
        }
    }
    return samples;
}

protocol::FormatInfo info_of(const DatasetContent& content) {
    auto info = protocol::parse_format_info(std::as_bytes(std::span(content.format_info)));
    EXPECT_TRUE(info) << info.error().message;
    return std::move(*info);
}

std::string compressed(const std::string& raw) {
    std::string out(::ZSTD_compressBound(raw.size()), '\0');
    out.resize(::ZSTD_compress(out.data(), out.size(), raw.data(), raw.size(), 3));
    return out;
}

struct Indexed {
    DatasetContent content;
    std::vector<std::string> notes;
    Result<void> result;
    std::string error() const { return result ? "no error" : result.error().message; }
};

// --- MDS

std::string mds_shard(const std::string& name, std::size_t samples, std::size_t bytes, const std::string& zip = "",
                      const std::string& encoding = "str") {
    const std::string zip_data = zip.empty() ? "null" : R"({"basename": ")" + zip + R"(", "bytes": 1, "hashes": {}})";
    return R"({"column_names": ["id", "text"], "column_encodings": ["int", ")" + encoding +
           R"("], "column_sizes": [8, null], "compression": )" + (zip.empty() ? "null" : "\"zstd:3\"") +
           R"(, "format": "mds", "hashes": [], "raw_data": {"basename": ")" + name + R"(", "bytes": )" +
           std::to_string(bytes) + R"(, "hashes": {}}, "samples": )" + std::to_string(samples) +
           R"(, "size_limit": 100, "version": 2, "zip_data": )" + zip_data + "}";
}

std::string mds_index(const std::vector<std::string>& shards) {
    std::string text = R"({"version": 2, "shards": [)";
    for (std::size_t i = 0; i < shards.size(); ++i) text += (i == 0 ? "" : ", ") + shards[i];
    return text + "]}";
}

std::vector<std::string> mds_samples(std::size_t count, std::size_t bytes) {
    std::vector<std::string> samples;
    for (std::size_t i = 0; i < count; ++i) {
        samples.push_back(test::number_bytes(static_cast<std::uint32_t>(bytes + i)) + test::number_bytes(i) +
                          std::string(bytes + i, static_cast<char>('a' + i)));
    }
    return samples;
}

Indexed index_as_mds(MemorySource& source, const BlockGoal& goal = {}) {
    Indexed indexed;
    indexed.result = index_mds(source, goal, indexed.content, indexed.notes, {}, {});
    return indexed;
}

void put_mds(MemorySource& source, const std::string& directory, std::size_t samples, std::size_t bytes) {
    const std::string shard = test::table_file(mds_samples(samples, bytes), "{\"the columns\": \"once more\"}");
    source.objects[directory + "shard.mds"] = shard;
    source.objects[directory + "index.json"] = mds_index({mds_shard("shard.mds", samples, shard.size())});
}

TEST(IndexMds, EverySampleMapsToItsBytes) {
    MemorySource source;
    put_mds(source, "", 9, 20);
    for (const BlockGoal& goal : kGoals) {
        const Indexed indexed = index_as_mds(source, goal);
        ASSERT_TRUE(indexed.result) << indexed.error();
        EXPECT_EQ(samples_of(source, indexed.content), mds_samples(9, 20)) << format_block_goal(goal);
        const auto info = info_of(indexed.content);
        ASSERT_EQ(info.columns.size(), 2u);
        EXPECT_EQ(info.columns[0], (protocol::FormatColumn{"id", "int", 8, ElementType::int64}));
        EXPECT_EQ(info.columns[1], (protocol::FormatColumn{"text", "str", 0, ElementType::none}));
    }
}

TEST(IndexMds, ReadsIndexAndTablesOnly) {
    MemorySource source;
    put_mds(source, "", 20, 100'000);
    ASSERT_TRUE(index_as_mds(source).result);
    EXPECT_LT(source.bytes_read, source.objects["index.json"].size() + 200);
}

TEST(IndexMds, IndexOfSeveralReadsIsReadOnce) {
    MemorySource source;
    put_mds(source, "", 9, 20);
    std::string& index = source.objects["index.json"];
    index.insert(1, "\"note\": \"" + std::string(6 << 20, 'n') + "\", ");
    const Indexed indexed = index_as_mds(source);
    ASSERT_TRUE(indexed.result) << indexed.error();
    EXPECT_EQ(samples_of(source, indexed.content), mds_samples(9, 20));
    EXPECT_LT(source.bytes_read, index.size() + 200);
    index.resize(index.size() - 1);
    EXPECT_THAT(index_as_mds(source).error(), HasSubstr("index.json is not JSON: incomplete"));
    index += "} more";
    EXPECT_THAT(index_as_mds(source).error(), HasSubstr("index.json is not JSON: extra data"));
}

TEST(IndexMds, StreamsInSubdirectoriesFormOneDataset) {
    MemorySource source;
    put_mds(source, "b/", 3, 5);
    put_mds(source, "a/x/", 2, 5);
    const Indexed indexed = index_as_mds(source);
    ASSERT_TRUE(indexed.result) << indexed.error();
    EXPECT_EQ(indexed.content.objects.size(), 2u);
    EXPECT_EQ(indexed.content.samples.size(), 5u);
    source.objects["index.json"] = mds_index({mds_shard("b/shard.mds", 3, source.objects["b/shard.mds"].size())});
    EXPECT_EQ(index_as_mds(source).content.samples.size(), 3u);
}

TEST(IndexMds, OneCompressedShardMakesEveryShardABlock) {
    MemorySource source;
    const std::string one = test::table_file(mds_samples(4, 30));
    const std::string two = test::table_file(mds_samples(6, 10));
    source.objects["one.mds"] = one;
    source.objects["two.mds.zstd"] = compressed(two);
    source.objects["index.json"] = mds_index(
        {mds_shard("one.mds", 4, one.size(), "one.mds.zstd"), mds_shard("two.mds", 6, two.size(), "two.mds.zstd")});
    const Indexed indexed = index_as_mds(source);
    ASSERT_TRUE(indexed.result) << indexed.error();
    EXPECT_TRUE(indexed.content.samples_by_ordinal);
    EXPECT_TRUE(indexed.content.samples.empty());
    EXPECT_EQ(indexed.content.sample_count(), 10u);
    ASSERT_EQ(indexed.content.blocks.size(), 2u);
    EXPECT_EQ(indexed.content.blocks[0].raw_bytes, 0u);
    EXPECT_EQ(indexed.content.blocks[1].raw_bytes, two.size());
    EXPECT_EQ(indexed.content.blocks[1].length, source.objects["two.mds.zstd"].size());
    EXPECT_THAT(indexed.notes, ElementsAre(HasSubstr("compressed")));

    source.objects["two.mds"] = two;  // now present in both forms
    EXPECT_FALSE(index_as_mds(source).content.samples_by_ordinal);
}

TEST(IndexMds, WithoutListingOneShardShowsTheCompression) {
    MemorySource source;
    source.lists = false;
    const std::string one = test::table_file(mds_samples(4, 30));
    const std::string two = test::table_file(mds_samples(6, 10));
    source.objects["index.json"] = mds_index(
        {mds_shard("one.mds", 4, one.size(), "one.mds.zstd"), mds_shard("two.mds", 6, two.size(), "two.mds.zstd")});
    source.objects["one.mds"] = one;
    source.objects["two.mds"] = two;
    Indexed indexed = index_as_mds(source);
    ASSERT_TRUE(indexed.result) << indexed.error();
    EXPECT_FALSE(indexed.content.samples_by_ordinal);
    source.objects["one.mds.zstd"] = compressed(one);
    source.objects["two.mds.zstd"] = compressed(two);
    indexed = index_as_mds(source);
    ASSERT_TRUE(indexed.result) << indexed.error();
    EXPECT_EQ(indexed.content.blocks[1].raw_bytes, two.size());
}

TEST(IndexMds, InvalidIndexErrorNamesTheProblem) {
    MemorySource good;
    put_mds(good, "", 3, 5);
    const std::size_t bytes = good.objects["shard.mds"].size();
    const auto error_with = [&](const std::string& index) {
        MemorySource source;
        source.objects = good.objects;
        source.objects["index.json"] = index;
        return index_as_mds(source).error();
    };
    EXPECT_THAT(error_with("{"), HasSubstr("index.json is not JSON"));
    EXPECT_THAT(error_with("{}"), HasSubstr("has no \"shards\""));
    EXPECT_THAT(error_with(mds_index({mds_shard("shard.mds", 4, bytes)})),
                HasSubstr("shard.mds: at offset 0: it holds 3"));
    EXPECT_THAT(error_with(mds_index({mds_shard("other.mds", 3, bytes)})), HasSubstr("other.mds"));
    EXPECT_THAT(error_with(mds_index({mds_shard("../shard.mds", 3, bytes)})), HasSubstr("not a path below it"));
    EXPECT_THAT(error_with(mds_index({mds_shard("shard.mds", 3, bytes), mds_shard("shard.mds", 3, bytes)})),
                HasSubstr("shard.mds twice"));
    EXPECT_THAT(error_with(mds_index({mds_shard("shard.mds", 3, bytes, "", "pkl")})),
                ::testing::AllOf(HasSubstr("column \"text\""), HasSubstr("unsafe")));
    EXPECT_THAT(error_with(mds_index({mds_shard("shard.mds", 3, bytes), mds_shard("b.mds", 3, bytes, "", "bytes")})),
                HasSubstr("other columns"));
    std::string text = mds_index({mds_shard("shard.mds", 3, bytes)});
    text.replace(text.find("\"mds\""), 5, "\"csv\"");
    EXPECT_THAT(error_with(text), HasSubstr("only mds is read"));
    text = mds_index({mds_shard("shard.mds", 3, bytes)});
    text.replace(text.find("\"samples\": 3"), 12, "\"samples\": -3");
    EXPECT_THAT(error_with(text), HasSubstr("index.json: shards[0].samples is not a whole number"));
    text = mds_index({mds_shard("shard.mds", 3, bytes, "shard.mds.br")});
    text.replace(text.find("\"zstd:3\""), 8, "\"br:11\"");
    EXPECT_THAT(error_with(text), HasSubstr("compressed with br:11; only zstd is read"));
    EXPECT_THAT(error_with(mds_index({})), HasSubstr("no samples"));
}

TEST(IndexMds, DecompressedSizeIsBoundedAndMustMatchTheFrame) {
    MemorySource source;
    const std::string raw = test::table_file(mds_samples(4, 30));
    source.objects["a.zstd"] = compressed(raw);
    const auto error_with = [&](std::size_t bytes) {
        source.objects["index.json"] = mds_index({mds_shard("a", 4, bytes, "a.zstd")});
        return index_as_mds(source).error();
    };
    EXPECT_EQ(error_with(raw.size()), "no error");
    EXPECT_THAT(error_with(raw.size() + 1), HasSubstr("once decompressed, but its index says"));
    EXPECT_THAT(error_with(std::size_t{1} << 40), HasSubstr("a.zstd"));
    source.objects["a.zstd"] = "not zstd at all";
    EXPECT_THAT(error_with(raw.size()), HasSubstr("not compressed with zstd"));
}

// --- LitData

const char* const kTree =
    R"([1, {\"type\": \"builtins.dict\", \"context\": \"[\\\"id\\\", \\\"pair\\\"]\", \"children_spec\": [)"
    R"({\"type\": null, \"context\": null, \"children_spec\": []}, {\"type\": \"builtins.list\", \"context\": \"null\", )"
    R"(\"children_spec\": [{\"type\": null, \"context\": null, \"children_spec\": []}, )"
    R"({\"type\": null, \"context\": null, \"children_spec\": []}]}]}])";

std::string litdata_index(const std::string& chunks, const std::string& more = "",
                          const std::string& formats = R"("int", "str", "no_header_tensor:15")",
                          const std::string& loader = "PyTreeLoader") {
    return R"({"chunks": [)" + chunks + R"(], "config": {"chunk_bytes": 100, "compression": null, "data_format": [)" +
           formats + R"(], "data_spec": ")" + (loader == "PyTreeLoader" ? kTree : "") + R"(", "encryption": null, )" +
           R"("item_loader": ")" + loader + "\"" + more + "}}";
}

std::string litdata_chunk(const std::string& name, std::size_t samples, std::size_t bytes) {
    return R"({"chunk_bytes": )" + std::to_string(bytes) + R"(, "chunk_size": )" + std::to_string(samples) +
           R"(, "dim": null, "filename": ")" + name + "\"}";
}

Indexed index_as_litdata(MemorySource& source, const BlockGoal& goal = {}, std::uint32_t tokens = 0) {
    Indexed indexed;
    indexed.result = index_litdata(source, goal, tokens, indexed.content, indexed.notes, {}, {});
    return indexed;
}

TEST(IndexLitdata, SamplesMapToTheirBytesAndLeavesToTheirPaths) {
    MemorySource source;
    std::vector<std::string> samples;
    for (int i = 0; i < 7; ++i) {
        samples.push_back(test::sized_fields({test::number_bytes(std::int64_t{i}), std::to_string(i), "12345678"}));
    }
    source.objects["chunk-0-0.bin"] = test::table_file(samples);
    source.objects["index.json"] = litdata_index(litdata_chunk("chunk-0-0.bin", 7, 1));
    for (const BlockGoal& goal : kGoals) {
        const Indexed indexed = index_as_litdata(source, goal);
        ASSERT_TRUE(indexed.result) << indexed.error();
        EXPECT_EQ(samples_of(source, indexed.content), samples);
        const auto info = info_of(indexed.content);
        ASSERT_EQ(info.columns.size(), 3u);
        EXPECT_EQ(info.columns[0], (protocol::FormatColumn{"id", "int", 0, ElementType::int64}));
        EXPECT_EQ(info.columns[1].name, "pair.0");
        EXPECT_EQ(info.columns[2], (protocol::FormatColumn{"pair.1", "no_header_tensor:15", 0, ElementType::int32}));
        EXPECT_THAT(info.structure, HasSubstr("builtins.dict"));
    }
}

TEST(IndexLitdata, TokensAreDocumentsOrWindows) {
    MemorySource source;
    source.objects["c.bin"] = test::table_file(
        {test::numbers_bytes<std::int32_t>({1, 2, 3}), test::numbers_bytes<std::int32_t>({4, 5, 6, 7})});
    source.objects["index.json"] =
        litdata_index(litdata_chunk("c.bin", 2, 1), "", R"("no_header_tensor:16")", "TokensLoader");
    const Indexed documents = index_as_litdata(source);
    ASSERT_TRUE(documents.result) << documents.error();
    EXPECT_THAT(samples_of(source, documents.content), ElementsAre(test::numbers_bytes<std::int32_t>({1, 2, 3}),
                                                                   test::numbers_bytes<std::int32_t>({4, 5, 6, 7})));
    const Indexed windows = index_as_litdata(source, {}, 2);
    ASSERT_TRUE(windows.result) << windows.error();
    EXPECT_THAT(samples_of(source, windows.content),
                ElementsAre(test::numbers_bytes<std::int32_t>({1, 2}), test::numbers_bytes<std::int32_t>({3, 4}),
                            test::numbers_bytes<std::int32_t>({5, 6})));
    EXPECT_THAT(windows.notes, ElementsAre(HasSubstr("4 byte(s)")));
    EXPECT_TRUE(info_of(windows.content).bare);
    EXPECT_EQ(info_of(windows.content).tokens_per_sample, 2u);
}

TEST(IndexLitdata, UnsupportedOrBrokenChunksAreRefused) {
    MemorySource source;
    source.objects["c.bin"] = test::table_file({"sample"});
    const auto error_with = [&](const std::string& index) {
        source.objects["index.json"] = index;
        return index_as_litdata(source).error();
    };
    const std::string chunk = litdata_chunk("c.bin", 1, 1);
    EXPECT_THAT(error_with(litdata_index(chunk, "", R"("int", "pickle", "str")")),
                HasSubstr("leaf \"pair.0\" is pickled"));
    EXPECT_THAT(error_with(litdata_index(chunk, "", R"("int")", "ParquetLoader")), HasSubstr("ParquetLoader"));
    std::string index = litdata_index(chunk);
    index.replace(index.find("\"encryption\": null"), 18, "\"encryption\": {\"a\": 1}");
    EXPECT_THAT(error_with(index), HasSubstr("encrypted"));
    index = litdata_index(chunk);
    index.replace(index.find("\"compression\": null"), 19, "\"compression\": \"lz4\"");
    EXPECT_THAT(error_with(index), HasSubstr("only zstd"));
    index = litdata_index(chunk, R"(, "compression_level": "sample")");
    index.replace(index.find("\"compression\": null"), 19, "\"compression\": \"zstd\"");
    EXPECT_THAT(error_with(index), HasSubstr("compression_level is \"sample\""));
    index = litdata_index(chunk, R"(, "compression_level": "batch")");
    index.replace(index.find("\"compression\": null"), 19, "\"compression\": \"zstd\"");
    EXPECT_THAT(error_with(index),
                HasSubstr("c.bin: at offset 0: it has 18 bytes, too few for a chunk of zstd frames"));
    EXPECT_THAT(error_with(litdata_index(litdata_chunk("c.bin", 2, 1))), HasSubstr("c.bin: at offset 0"));
}

TEST(IndexLitdata, ReadsCompressedChunksOfOldAndNewWriters) {
    const std::string raw = test::table_file({"first sample", "second sample, longer"});
    for (const std::size_t counted : {raw.size(), raw.size() - 16}) {
        MemorySource source;
        source.objects["c.zstd.bin"] = compressed(raw);
        std::string index = litdata_index(litdata_chunk("c.zstd.bin", 2, counted));
        index.replace(index.find("\"compression\": null"), 19, "\"compression\": \"zstd\"");
        source.objects["index.json"] = index;
        const Indexed indexed = index_as_litdata(source);
        ASSERT_TRUE(indexed.result) << indexed.error();
        ASSERT_EQ(indexed.content.blocks.size(), 1u);
        EXPECT_EQ(indexed.content.blocks[0].raw_bytes, raw.size());
    }
}

// --- TFRecord

Indexed index_as_tfrecord(MemorySource& source, const BlockGoal& goal = {}) {
    Indexed indexed;
    indexed.result = index_tfrecord(source, goal, indexed.content, indexed.notes, {}, {});
    return indexed;
}

TEST(IndexTfrecord, EveryRecordMapsToItsBytes) {
    MemorySource source;
    std::vector<std::string> expected;
    for (int file = 0; file < 3; ++file) {
        std::vector<std::string> records;
        for (int i = 0; i < 40; ++i) {
            records.push_back(
                std::string(static_cast<std::size_t>(i * (file == 1 ? 5000 : 3)), static_cast<char>('a' + file)));
            expected.push_back(test::tfrecord_file({records.back()}));
        }
        source.objects["f-0000" + std::to_string(file) + ".tfrecord"] = test::tfrecord_file(records);
    }
    source.objects["README"] = "not a record";
    for (const BlockGoal& goal : kGoals) {
        const Indexed indexed = index_as_tfrecord(source, goal);
        ASSERT_TRUE(indexed.result) << indexed.error();
        EXPECT_EQ(samples_of(source, indexed.content), expected);
        EXPECT_THAT(indexed.notes, ElementsAre(HasSubstr("left out 1 file")));
    }
}

TEST(IndexTfrecord, LargeRecordsAreSkippedUnread) {
    MemorySource source;
    source.objects["a.tfrecord"] = test::tfrecord_file(std::vector<std::string>(50, std::string(200'000, 'x')));
    ASSERT_TRUE(index_as_tfrecord(source).result);
    EXPECT_LT(source.bytes_read, std::uint64_t{400'000});
}

TEST(IndexTfrecord, ErrorNamesFileAndOffset) {
    MemorySource source;
    source.objects["a.tfrecord"] = test::tfrecord_file({"one", "two"});
    source.objects["a.tfrecord"][20] ^= 1;
    EXPECT_THAT(index_as_tfrecord(source).error(), HasSubstr("a.tfrecord: at offset 19"));
}

// --- Megatron

Indexed index_as_megatron(MemorySource& source, const BlockGoal& goal = {}, std::uint32_t tokens = 0) {
    Indexed indexed;
    indexed.result = index_megatron(source, goal, tokens, indexed.content, indexed.notes, {}, {});
    return indexed;
}

void put_megatron(MemorySource& source, const std::string& stem,
                  const std::vector<std::vector<std::vector<std::int32_t>>>& documents) {
    const auto files = test::megatron_files(documents);
    source.objects[stem + ".bin"] = files.bin;
    source.objects[stem + ".idx"] = files.idx;
}

TEST(IndexMegatron, SamplesAreNonEmptyDocuments) {
    MemorySource source;
    put_megatron(source, "a", {{{1, 2}, {3}}, {}, {{4}}});
    put_megatron(source, "b", {{{5, 6, 7}}});
    for (const BlockGoal& goal : kGoals) {
        const Indexed indexed = index_as_megatron(source, goal);
        ASSERT_TRUE(indexed.result) << indexed.error();
        EXPECT_THAT(samples_of(source, indexed.content),
                    ElementsAre(test::numbers_bytes<std::int32_t>({1, 2, 3}), test::numbers_bytes<std::int32_t>({4}),
                                test::numbers_bytes<std::int32_t>({5, 6, 7})));
        EXPECT_THAT(indexed.notes, ElementsAre(HasSubstr("1 empty sample")));
        const auto info = info_of(indexed.content);
        EXPECT_EQ(info.columns[0], (protocol::FormatColumn{"tokens", "tokens:int32", 0, ElementType::int32}));
    }
}

TEST(IndexMegatron, WindowsCrossDocumentsButNotFiles) {
    MemorySource source;
    put_megatron(source, "a", {{{1, 2, 3}}, {{4, 5}}, {{6, 7}}});
    put_megatron(source, "b", {{{8, 9, 10}}});
    const Indexed indexed = index_as_megatron(source, {}, 3);
    ASSERT_TRUE(indexed.result) << indexed.error();
    EXPECT_THAT(samples_of(source, indexed.content),
                ElementsAre(test::numbers_bytes<std::int32_t>({1, 2, 3}), test::numbers_bytes<std::int32_t>({4, 5, 6}),
                            test::numbers_bytes<std::int32_t>({8, 9, 10})));
    EXPECT_THAT(indexed.notes, ElementsAre(HasSubstr("4 byte(s)")));
    EXPECT_THAT(index_as_megatron(source, {}, 50).error(), HasSubstr("no samples"));
}

TEST(IndexMegatron, ReadsNoTokens) {
    MemorySource source;
    put_megatron(source, "a", {{std::vector<std::int32_t>(1'000'000, 5)}});
    ASSERT_TRUE(index_as_megatron(source).result);
    EXPECT_LT(source.bytes_read, std::uint64_t{200});
}

TEST(IndexMegatron, InvalidIndexErrorNamesTheProblem) {
    MemorySource source;
    put_megatron(source, "a", {{{1}}});
    put_megatron(source, "b", {{{2}}});
    source.objects["b.idx"][17] = 3;  // int16
    EXPECT_THAT(index_as_megatron(source).error(), HasSubstr("; all files of a dataset must have the same type"));
    source.objects.erase("b.idx");
    EXPECT_THAT(index_as_megatron(source).error(), HasSubstr("the index of b.bin: b.idx is not there"));
    source.objects.clear();
    EXPECT_THAT(index_as_megatron(source).error(), HasSubstr("no samples"));
}

// --- format detection

TEST(DetectFormat, UsesTheIndexThenFileNames) {
    const auto detected = [](std::map<std::string, std::string> objects) {
        MemorySource source;
        source.objects = std::move(objects);
        const auto listing = source.list({}, {});
        const auto format = detect_format(source, *listing);
        return format ? std::string(protocol::name(*format)) : format.error().message;
    };
    const std::string mds = mds_index({});
    EXPECT_EQ(detected({{"index.json", mds}, {"shard.mds", "x"}}), "mds");
    EXPECT_EQ(detected({{"train/index.json", mds}, {"train/shard.mds", "x"}}), "mds");
    EXPECT_EQ(detected({{"index.json", litdata_index("")}, {"chunk.bin", "x"}}), "litdata");
    EXPECT_EQ(detected({{"index.json", "{\"other\": 1}"}, {"a.jpg", "x"}}), "raw");
    EXPECT_EQ(detected({{"index.json", "no JSON"}, {"a.jpg", "x"}}), "raw");
    EXPECT_EQ(detected({{"a/b.tar", "x"}, {"c.tar", "x"}}), "webdataset");
    EXPECT_EQ(detected({{"a.tfrecord", "x"}, {"b.tfrecord-00000-of-00002", "x"}, {"c.tfrecords", "x"}}), "tfrecord");
    EXPECT_EQ(detected({{"a.tfrecord", "x"}, {"b.jpg", "x"}}), "raw");
    EXPECT_EQ(detected({{"a.bin", "x"}, {"a.idx", "x"}}), "megatron");
    EXPECT_EQ(detected({{"a.bin", "x"}, {"b.idx", "x"}}), "raw");
    EXPECT_EQ(detected({{"a.bin", "x"}}), "raw");
}

}  // namespace
}  // namespace larder::cache
