#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace larder {
namespace {

TEST(Utf8, OnlyValidSequencesAreUtf8) {
    for (const char* text :
         {"", "plain", "\xc3\xa9", "\xe2\x82\xac", "\xed\x9f\xbf", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"}) {
        EXPECT_TRUE(is_utf8(text)) << text;
    }
    for (const char* text : {"\x80", "\xc3", "a\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
                             "\xf4\x90\x80\x80", "\xff", "\xe2\x82z"}) {
        EXPECT_FALSE(is_utf8(text)) << text;
    }
}

TEST(Utf8, PrefixEndsAtACharacter) {
    const std::string text =
        "a\xe2\x82\xac"
        "b";
    EXPECT_EQ(utf8_prefix(text, 0), "");
    EXPECT_EQ(utf8_prefix(text, 1), "a");
    EXPECT_EQ(utf8_prefix(text, 3), "a");
    EXPECT_EQ(utf8_prefix(text, 4), "a\xe2\x82\xac");
    EXPECT_EQ(utf8_prefix(text, 5), text);
    EXPECT_EQ(utf8_prefix(text, 9), text);
}

TEST(Utf8, BytesOutsideSequencesAreEscaped) {
    EXPECT_EQ(escape_non_utf8("plain \xc3\xa9 \n"), "plain \xc3\xa9 \n");
    EXPECT_EQ(escape_non_utf8("\xff-\xe2\x82z"), "\\xff-\\xe2\\x82z");
    EXPECT_EQ(escape_non_utf8("\xc3"), "\\xc3");
}

}  // namespace
}  // namespace larder
