// SampleTable, sample_in and split_columns: samples are read back unchanged, and truncated data or an offset outside it
// is an error that says where.

#include "cache/protocol/sample_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/foreign_format_files.h"
#include "tests/support/text.h"

namespace larder::protocol {

using test::as_bytes;
using test::text_of;
namespace {

using test::MemoryReader;
using test::number_bytes;
using ::testing::HasSubstr;

Result<std::vector<std::string>> samples_of(const std::string& file, std::uint64_t expected) {
    MemoryReader reader(file);
    auto table = SampleTable::open(reader, expected);
    if (!table) return std::unexpected(table.error());
    std::vector<std::string> samples;
    for (std::uint32_t i = 0; i < table->sample_count(); ++i) {
        const auto extent = table->next();
        if (!extent) return std::unexpected(extent.error());
        samples.push_back(file.substr(extent->offset, extent->bytes));
    }
    return samples;
}

std::string error_of(const std::string& file, std::uint64_t expected) {
    const auto samples = samples_of(file, expected);
    return samples ? "no error" : samples.error().message;
}

TEST(SampleTable, SamplesAreReadBackUnchanged) {
    const std::vector<std::string> samples{"first", "", "third one", std::string(70'000, 'x')};
    for (const char* between : {"", "{\"column_names\": []}"}) {
        const std::string file = test::table_file(samples, between);
        const auto read = samples_of(file, 4);
        ASSERT_TRUE(read) << read.error().message;
        EXPECT_EQ(*read, samples);
        for (std::uint32_t i = 0; i < 4; ++i) {
            const auto one = sample_in(as_bytes(file), i, 4);
            ASSERT_TRUE(one) << one.error().message;
            EXPECT_EQ(text_of(*one), samples[i]);
        }
    }
}

TEST(SampleTable, ReadsMoreSamplesThanFitInOneRead) {
    std::vector<std::string> samples;
    for (int i = 0; i < 40'000; ++i) samples.push_back(std::to_string(i));
    const auto read = samples_of(test::table_file(samples), samples.size());
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(*read, samples);
}

TEST(SampleTable, ErrorsSayWhatIsWrongAndWhere) {
    const std::string good = test::table_file({"abc", "de"});
    EXPECT_THAT(error_of("", 2), HasSubstr("too few"));
    EXPECT_THAT(error_of(good.substr(0, 7), 2), HasSubstr("too few"));
    EXPECT_THAT(error_of(good, 3), HasSubstr("its index says 3"));
    EXPECT_THAT(error_of(good.substr(0, 12), 2), HasSubstr("longer than the file"));
    EXPECT_THAT(error_of(good.substr(0, good.size() - 1), 2), HasSubstr("at offset 12: sample 1 from 19 ends at 21"));
    EXPECT_THAT(error_of(good + "x", 2), HasSubstr("at offset 21: the last sample ends here"));
    std::string within = good;
    within.replace(4, 4, number_bytes(std::uint32_t{15}));
    EXPECT_THAT(error_of(within, 2), HasSubstr("within the table"));
    std::string backwards = good;
    backwards.replace(8, 4, number_bytes(std::uint32_t{15}));
    EXPECT_THAT(error_of(backwards, 2), HasSubstr("at offset 8"));
    const std::string many = number_bytes(std::uint32_t{0xffffffff}) + std::string(60, '\0');
    EXPECT_THAT(error_of(many, 0xffffffff), HasSubstr("longer than the file"));

    const auto outside = sample_in(as_bytes(good), 2, 2);
    ASSERT_FALSE(outside);
    EXPECT_THAT(outside.error().message, HasSubstr("only 2 samples"));
    EXPECT_FALSE(sample_in(as_bytes(backwards), 0, 2));
    EXPECT_FALSE(sample_in(as_bytes(within), 0, 2));
    EXPECT_FALSE(sample_in({}, 0, 2));
}

TEST(SplitColumns, FixedSizeColumnsStoreNoSize) {
    const std::vector<FormatColumn> columns{{"a", "str", 0}, {"b", "int32", 4}, {"c", "bytes", 0}};
    const std::string sample =
        number_bytes(std::uint32_t{2}) + number_bytes(std::uint32_t{0}) + "hi" + number_bytes(std::uint32_t{77});
    std::vector<std::span<const std::byte>> fields;
    const auto split = split_columns(as_bytes(sample), columns, fields);
    ASSERT_TRUE(split) << split.error().message;
    ASSERT_EQ(fields.size(), 3u);
    EXPECT_EQ(text_of(fields[0]), "hi");
    EXPECT_EQ(text_of(fields[1]), number_bytes(std::uint32_t{77}));
    EXPECT_EQ(text_of(fields[2]), "");
}

TEST(SplitColumns, FieldsMustFillTheSampleExactly) {
    const std::vector<FormatColumn> columns{{"a", "str", 0}, {"b", "int32", 4}};
    const auto error = [&](const std::string& sample) {
        std::vector<std::span<const std::byte>> fields;
        const auto split = split_columns(as_bytes(sample), columns, fields);
        return split ? std::string("no error") : split.error().message;
    };
    EXPECT_THAT(error("abc"), HasSubstr("the sizes of its 1 fields alone take 4"));
    EXPECT_THAT(error(number_bytes(std::uint32_t{9}) + "abc"), HasSubstr("field \"a\" has 9 bytes"));
    EXPECT_THAT(error(number_bytes(std::uint32_t{0xffffffff}) + "abc"), HasSubstr("field \"a\""));
    EXPECT_THAT(error(number_bytes(std::uint32_t{1}) + "abc"), HasSubstr("at offset 5: field \"b\""));
    EXPECT_THAT(error(number_bytes(std::uint32_t{1}) + "abcdef"), HasSubstr("at offset 9: its fields end here"));
}

}  // namespace
}  // namespace larder::protocol
