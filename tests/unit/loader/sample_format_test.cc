// Splits a sample's bytes into fields by the manifest's format. Fields have names, encodings and types, and no bytes
// are copied. A sample that does not match the format is an error and leaves no field behind.

#include "loader/formats/sample_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/dataset/manifest_writer.h"
#include "cache/protocol/format_info.h"
#include "loader/batch.h"
#include "tests/support/foreign_format_files.h"
#include "tests/support/temp_directory.h"

namespace larder::detail {
namespace {

using protocol::Format;
using ::testing::HasSubstr;

std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class SampleFormatTest : public ::testing::Test {
protected:
    // Makes a dataset of one object, which is one block of these samples.
    void make(Format format, const std::string& object, std::vector<protocol::ManifestSample> samples,
              const protocol::FormatInfo& info, bool by_ordinal = false) {
        object_ = object;
        cache::DatasetContent content;
        content.add_object("a/b.bin", object.size(), 1, protocol::kNoLabel);
        content.blocks.push_back({.offset = 0,
                                  .length = static_cast<std::uint32_t>(object.size()),
                                  .first_sample = 0,
                                  .sample_count = static_cast<std::uint32_t>(samples.size())});
        if (!by_ordinal) content.samples = std::move(samples);
        content.samples_by_ordinal = by_ordinal;
        content.format_info = protocol::encode(info);
        const auto written = cache::write_manifest(content, {.url = "file:///data", .format = format},
                                                   {.path = directory_ / "manifest"});
        ASSERT_TRUE(written) << written.error().message;
        auto manifest = protocol::Manifest::open(directory_ / "manifest");
        ASSERT_TRUE(manifest && manifest->check());
        manifest_ = std::move(*manifest);
        auto sample_format = make_sample_format(manifest_);
        ASSERT_TRUE(sample_format) << sample_format.error().message;
        format_ = std::move(*sample_format);
    }
    Result<void> add(std::uint64_t sample) {
        return state_.add(manifest_, *format_, sample, 0, std::as_bytes(std::span(object_)));
    }

    test::TempDirectory directory_;
    std::string object_;
    protocol::Manifest manifest_;
    std::unique_ptr<SampleFormat> format_;
    BatchState state_;
};

const protocol::FormatInfo kColumns{.columns = {{"id", "uint16", 2, ElementType::uint16}, {"text", "str", 0}},
                                    .bare = false,
                                    .tokens_per_sample = 0,
                                    .structure = "[1, {}]"};

std::string row(std::uint16_t id, const std::string& text) {
    return test::number_bytes(static_cast<std::uint32_t>(text.size())) + test::number_bytes(id) + text;
}

TEST_F(SampleFormatTest, ColumnsHaveNamesEncodingsAndTypes) {
    const std::string first = row(7, "seven");
    const std::string second = row(8, "");
    make(Format::mds, first + second,
         {{0, static_cast<std::uint32_t>(first.size())},
          {static_cast<std::uint32_t>(first.size()), static_cast<std::uint32_t>(second.size())}},
         kColumns);
    ASSERT_TRUE(add(1));
    ASSERT_TRUE(add(0));
    state_.finish();
    const Sample& sample = state_.samples[1];
    EXPECT_EQ(sample.key, "a/b.bin");
    EXPECT_EQ(sample.structure, "[1, {}]");
    ASSERT_EQ(sample.fields.size(), 2u);
    EXPECT_EQ(sample.fields[0].name, "id");
    EXPECT_EQ(sample.fields[0].element, ElementType::uint16);
    EXPECT_EQ(text_of(sample.fields[0].bytes), test::number_bytes(std::uint16_t{7}));
    EXPECT_EQ(sample.fields[1].encoding, "str");
    EXPECT_EQ(static_cast<const void*>(sample.fields[1].bytes.data()), object_.data() + 6);
    EXPECT_EQ(text_of(sample.fields[1].bytes), "seven");
    EXPECT_EQ(text_of(state_.samples[0].fields[1].bytes), "");
}

TEST_F(SampleFormatTest, SamplesAreFoundByOrdinalInAWholeObject) {
    make(Format::mds, test::table_file({row(1, "one"), row(2, "two")}), {{}, {}}, kColumns, true);
    ASSERT_TRUE(add(1));
    state_.finish();
    EXPECT_EQ(text_of(state_.samples[0].fields[1].bytes), "two");
    object_[0] = 3;
    const auto damaged = add(0);
    ASSERT_FALSE(damaged);
    EXPECT_THAT(damaged.error().message, HasSubstr("sample 0 in a/b.bin: at offset 0"));
}

TEST_F(SampleFormatTest, BareSampleIsItsOneColumn) {
    const protocol::FormatInfo tokens{
        .columns = {{"tokens", "tokens:int32", 0, ElementType::int32}}, .bare = true, .tokens_per_sample = 2};
    make(Format::megatron, test::numbers_bytes<std::int32_t>({1, 2, 3, 4}), {{0, 8}, {8, 8}}, tokens);
    ASSERT_TRUE(add(1));
    state_.finish();
    EXPECT_EQ(state_.samples[0].fields[0].element, ElementType::int32);
    EXPECT_EQ(text_of(state_.samples[0].bytes()), test::numbers_bytes<std::int32_t>({3, 4}));
}

TEST_F(SampleFormatTest, RecordChecksumIsVerified) {
    const std::string record = test::tfrecord_file({"data"});
    make(Format::tfrecord, record, {{0, static_cast<std::uint32_t>(record.size())}}, {});
    ASSERT_TRUE(add(0));
    state_.finish();
    EXPECT_EQ(text_of(state_.samples[0].bytes()), "data");
    object_[13] ^= 1;
    const auto damaged = add(0);
    ASSERT_FALSE(damaged);
    EXPECT_EQ(damaged.error().code, ErrorCode::corrupt);
    EXPECT_THAT(damaged.error().message, HasSubstr("checksum"));
}

TEST_F(SampleFormatTest, InvalidSampleLeavesNoFieldBehind) {
    const std::string good = row(7, "seven");
    const std::string bad = good.substr(0, good.size() - 1);
    const auto good_bytes = static_cast<std::uint32_t>(good.size());
    make(Format::mds, good + bad, {{0, good_bytes}, {good_bytes, static_cast<std::uint32_t>(bad.size())}}, kColumns);
    EXPECT_FALSE(add(1));
    ASSERT_TRUE(add(0));
    state_.finish();
    ASSERT_EQ(state_.samples.size(), 1u);
    EXPECT_EQ(state_.samples[0].fields.size(), 2u);
    EXPECT_EQ(state_.fields.size(), 2u);
}

}  // namespace
}  // namespace larder::detail
