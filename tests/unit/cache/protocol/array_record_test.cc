// ArrayRecord: groups are found where the index says, records are decoded across the block headers of Riegeli, and
// files that lie are refused at their offset. tests/python/test_formats.py reads files that array_record wrote.

#include "cache/protocol/array_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/protocol/sample_table.h"
#include "tests/support/array_record_files.h"

namespace larder::protocol {
namespace {

using test::GroupText;
using test::RiegeliFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Records = std::vector<std::string>;

std::string index_error(const std::string& file) {
    test::MemoryReader reader(file);
    const auto groups = read_array_record_index(reader);
    return groups ? "no error" : groups.error().message;
}

// Decodes the groups from `first` on, `count` of them, as one block.
Result<Records> decode_groups(const std::string& file, const std::vector<ArrayRecordGroup>& groups, std::size_t first,
                              std::size_t count) {
    std::uint64_t records = 0;
    std::uint64_t decoded_bytes = 0;
    for (std::size_t i = first; i < first + count; ++i) {
        records += groups[i].records;
        decoded_bytes += groups[i].decoded_bytes;
    }
    const std::string block = file.substr(groups[first].begin, groups[first + count - 1].end - groups[first].begin);
    const auto raw_bytes = array_record_raw_bytes(records, decoded_bytes);
    Decompressor decompressor;
    const auto raw =
        decode_array_record(std::as_bytes(std::span(block)), groups[first].begin, static_cast<std::uint32_t>(records),
                            static_cast<std::uint32_t>(raw_bytes), decompressor);
    if (!raw) return std::unexpected(raw.error());
    Records found;
    for (std::uint32_t i = 0; i < records; ++i) {
        const auto sample = sample_in({raw->get(), raw_bytes}, i, static_cast<std::uint32_t>(records));
        if (!sample) return std::unexpected(sample.error());
        found.emplace_back(reinterpret_cast<const char*>(sample->data()), sample->size());
    }
    return found;
}

// Decodes the only group of the file, whose index may lie.
std::string decode_error(const std::string& file) {
    test::MemoryReader reader(file);
    const auto groups = read_array_record_index(reader);
    if (!groups) return "index: " + groups.error().message;
    const auto records = decode_groups(file, *groups, 0, groups->size());
    return records ? "no error" : records.error().message;
}

RiegeliFile begun_file() {
    RiegeliFile file;
    file.add('s', 0, 0, "");
    return file;
}

TEST(ArrayRecord, RecordsAreDecodedByGroupOrTogether) {
    // The second group spans two block headers.
    const std::string large(140'000, 'x');
    const std::vector<Records> groups{{"a", "", "bc"}, {large, "d"}, {"e"}, {"f"}};
    const std::string file = test::array_record_file(groups);
    test::MemoryReader reader(file);
    const auto index = read_array_record_index(reader);
    ASSERT_TRUE(index) << index.error().message;
    ASSERT_EQ(index->size(), 4u);
    EXPECT_EQ((*index)[0].begin, 64u);
    EXPECT_GT((*index)[1].end, std::uint64_t{2} * 65536);
    for (std::size_t i = 0; i < groups.size(); ++i) {
        const auto records = decode_groups(file, *index, i, 1);
        ASSERT_TRUE(records) << records.error().message;
        EXPECT_EQ(*records, groups[i]);
    }
    const auto all = decode_groups(file, *index, 0, 4);
    ASSERT_TRUE(all) << all.error().message;
    EXPECT_THAT(*all, ElementsAre("a", "", "bc", large, "d", "e", "f"));
}

TEST(ArrayRecord, ChunksMayBeginAndEndAnywhereAroundABlockHeader) {
    for (std::size_t before = 65536 - 200; before < 65536 + 30; ++before) {
        RiegeliFile file = begun_file();
        const std::string filler(before - 64 - 40 - 5, 'y');
        const std::uint64_t first = file.add_records({filler});
        const std::uint64_t second = file.add_records({"abc", "de"});
        const std::string text =
            test::array_record_file(file, {{.begin = first, .decoded_bytes = filler.size(), .records = 1},
                                           {.begin = second, .decoded_bytes = 5, .records = 2}});
        test::MemoryReader reader(text);
        const auto index = read_array_record_index(reader);
        ASSERT_TRUE(index) << before << ": " << index.error().message;
        const auto records = decode_groups(text, *index, 1, 1);
        ASSERT_TRUE(records) << before << ": " << records.error().message;
        EXPECT_THAT(*records, ElementsAre("abc", "de")) << before;
        ASSERT_TRUE(decode_groups(text, *index, 0, 2)) << before;
    }
}

TEST(ArrayRecord, FilesWithoutAnIndexAreRefused) {
    const std::string file = test::array_record_file({{"a"}});
    EXPECT_EQ(index_error(file), "no error");
    EXPECT_THAT(index_error(""), HasSubstr("at offset 0"));
    EXPECT_THAT(index_error(file.substr(0, file.size() - 1)), HasSubstr("it is cut off"));
    EXPECT_THAT(index_error(file.substr(0, 65536)), HasSubstr("it is cut off"));
    EXPECT_THAT(index_error(std::string(std::size_t{2} * 65536, '\0')), HasSubstr("at offset 65536: no group"));
    std::string changed = file;
    changed[65536 + 24 + 40 + 8] ^= 1;  // in the postscript's magic or place
    EXPECT_THAT(index_error(changed), HasSubstr("at offset"));
}

TEST(ArrayRecord, IndexThatLeadsOutOfTheFileIsRefused) {
    const auto error_with = [](const std::vector<GroupText>& groups) {
        RiegeliFile file = begun_file();
        file.add_records({"abc"});
        return index_error(test::array_record_file(file, groups));
    };
    const GroupText good{.begin = 64, .decoded_bytes = 3, .records = 1};
    EXPECT_EQ(error_with({good}), "no error");
    const auto refused = HasSubstr("has no valid place for group");
    EXPECT_THAT(error_with({{.begin = 63, .decoded_bytes = 3, .records = 1}}), refused);
    EXPECT_THAT(error_with({{.begin = std::uint64_t{1} << 40, .decoded_bytes = 3, .records = 1}}), refused);
    EXPECT_THAT(error_with({{.begin = 64, .decoded_bytes = 3, .records = 0}}), refused);
    EXPECT_THAT(error_with({good, good}), refused) << "groups do not overlap";
    EXPECT_THAT(error_with({{.begin = 64, .decoded_bytes = 1u << 30, .records = 1}}), HasSubstr("cannot hold"));
    EXPECT_THAT(error_with({{.begin = 64, .decoded_bytes = 3, .records = 1u << 30}}), HasSubstr("cannot hold"));
    EXPECT_THAT(error_with({{.begin = 70, .decoded_bytes = 3, .records = 1}}), HasSubstr("at offset 70"));
}

TEST(ArrayRecord, KindsThatAreNotReadAreRefusedByName) {
    const auto error_with = [](char type, const std::string& data) {
        RiegeliFile file = begun_file();
        const std::uint64_t begin = file.add(type, 1, 3, data);
        return index_error(test::array_record_file(file, {{.begin = begin, .decoded_bytes = 3, .records = 1}}));
    };
    EXPECT_EQ(error_with('r', test::simple_chunk_data({"abc"})), "no error");
    EXPECT_THAT(error_with('t', "z..."), HasSubstr("transposed"));
    EXPECT_THAT(error_with('r', "b..."), HasSubstr("compressed with brotli"));
    EXPECT_THAT(error_with('r', "s..."), HasSubstr("compressed with snappy"));
}

TEST(ArrayRecord, BlockWithOtherRecordsThanItsIndexSaysIsRefused) {
    const auto error_with = [](const std::string& data, std::uint64_t decoded_bytes, std::uint64_t records,
                               const GroupText& claimed) {
        RiegeliFile file = begun_file();
        GroupText group = claimed;
        group.begin = file.add('r', records, decoded_bytes, data);
        return decode_error(test::array_record_file(file, {group}));
    };
    const std::string data = test::simple_chunk_data({"abc", "de"});
    EXPECT_EQ(error_with(data, 5, 2, {.decoded_bytes = 5, .records = 2}), "no error");
    EXPECT_THAT(error_with(data, 5, 2, {.decoded_bytes = 5, .records = 1}), HasSubstr("at offset 64"));
    EXPECT_THAT(error_with(data, 5, 2, {.decoded_bytes = 5, .records = 3}), HasSubstr("with 2 of its 3 records"));
    EXPECT_THAT(error_with(data, 5, 2, {.decoded_bytes = 4, .records = 2}), HasSubstr("at offset 64"));
    EXPECT_THAT(error_with(data, 5, 2, {.decoded_bytes = 6, .records = 2}), HasSubstr("bytes decoded, but the index"));
    EXPECT_THAT(error_with(data, 6, 2, {.decoded_bytes = 6, .records = 2}), HasSubstr("but claims 6"));
    EXPECT_THAT(error_with(data, 5, 3, {.decoded_bytes = 5, .records = 3}), HasSubstr("record 2 of the chunk"));
    EXPECT_THAT(error_with(data, 5, 1, {.decoded_bytes = 5, .records = 1}), HasSubstr("do not fill it"));
    EXPECT_THAT(error_with(std::string(1, '\0') + test::varint(100) + "abc", 3, 1, {.decoded_bytes = 3, .records = 1}),
                HasSubstr("sizes of the records"));
    EXPECT_THAT(
        error_with("z" + test::varint(8) + test::varint(1u << 30) + "x", 3, 1, {.decoded_bytes = 3, .records = 1}),
        HasSubstr("at offset 64"));
}

}  // namespace
}  // namespace larder::protocol
