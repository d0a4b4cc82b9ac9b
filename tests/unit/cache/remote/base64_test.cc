#include "cache/remote/base64.h"

#include <gtest/gtest.h>

namespace larder::cache {
namespace {

TEST(Base64, EncodesTheVectorsOfRfc4648) {
    EXPECT_EQ(base64_encode(""), "");
    EXPECT_EQ(base64_encode("f"), "Zg==");
    EXPECT_EQ(base64_encode("foob"), "Zm9vYg==");
    EXPECT_EQ(base64_encode("foobar"), "Zm9vYmFy");
    EXPECT_EQ(base64_encode("\xfb\xff\xfe"), "+//+");
    EXPECT_EQ(base64url_encode("\xfb\xff\xfe!"), "-__-IQ");
}

TEST(Base64, DecodesWhatItEncodes) {
    for (const std::string bytes : {"", "f", "fo", "foo", "foob"})
        EXPECT_EQ(base64_decode(base64_encode(bytes)), bytes);
    EXPECT_EQ(base64_decode(base64_encode(std::string(64, '\0'))), std::string(64, '\0'));
}

TEST(Base64, RefusesOtherText) {
    for (const char* text : {"Zg", "Zg=", "Z===", "Zm9v Yg=", " Zm9", "Zm9v\n", "Zm-_", "Zg==Zg=="}) {
        EXPECT_EQ(base64_decode(text), std::nullopt) << text;
    }
}

}  // namespace
}  // namespace larder::cache
