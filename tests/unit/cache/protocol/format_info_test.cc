// Format info decodes to what was encoded. Info with a part missing, too long or of an unknown kind is refused.

#include "cache/protocol/format_info.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/text.h"

namespace larder::protocol {

using test::as_bytes;
namespace {

const FormatInfo kInfo{.columns = {{"id", "int", 8, ElementType::int64}, {"text", "str", 0, ElementType::none}},
                       .bare = false,
                       .tokens_per_sample = 0,
                       .structure = "[1, {}]"};

TEST(FormatInfo, DecodesWhatWasEncoded) {
    const FormatInfo tokens{.columns = {{"tokens", "tokens:uint16", 0, ElementType::uint16}},
                            .bare = true,
                            .tokens_per_sample = 2049,
                            .structure = {}};
    for (const FormatInfo& info : {kInfo, tokens, FormatInfo{}}) {
        const auto parsed = parse_format_info(as_bytes(encode(info)));
        ASSERT_TRUE(parsed) << parsed.error().message;
        EXPECT_EQ(*parsed, info);
    }
}

TEST(FormatInfo, TruncatedOrExtendedInfoIsRefused) {
    const std::string blob = encode(kInfo);
    for (std::size_t bytes = 0; bytes < blob.size(); ++bytes) {
        EXPECT_FALSE(parse_format_info(as_bytes(blob.substr(0, bytes)))) << bytes;
    }
    EXPECT_FALSE(parse_format_info(as_bytes(blob + "x")));
}

TEST(FormatInfo, InvalidValuesAreRefused) {
    const auto accepted_with = [](std::size_t at, std::uint32_t number) {
        std::string blob = encode(kInfo);
        std::memcpy(blob.data() + at, &number, sizeof number);
        return parse_format_info(as_bytes(blob)).has_value();
    };
    EXPECT_FALSE(accepted_with(0, 2));            // layout
    EXPECT_FALSE(accepted_with(8, 1));            // bare, with two columns
    EXPECT_FALSE(accepted_with(12, 0xffffffff));  // columns
    EXPECT_FALSE(accepted_with(20, 99));          // element type
    EXPECT_FALSE(accepted_with(24, 0xffffffff));  // length of a name
}

TEST(ElementType, NamesAndSizesMatchNumpy) {
    for (std::uint8_t i = 1; i < kElementTypeEnd; ++i) {
        const auto type = static_cast<ElementType>(i);
        EXPECT_EQ(element_type_of(name(type)), type);
        const std::string text(name(type));
        EXPECT_EQ(size_bytes(type) * 8, std::stoul(text.substr(text.find_first_of("0123456789"))));
    }
    EXPECT_EQ(element_type_of("complex64"), std::nullopt);
}

}  // namespace
}  // namespace larder::protocol
