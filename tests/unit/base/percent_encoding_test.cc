#include "base/server/percent_encoding.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

TEST(PercentEncoding, KeepsUnreservedCharactersOnly) {
    EXPECT_EQ(percent_encode("Az09-._~"), "Az09-._~");
    EXPECT_EQ(percent_encode("a b/\xff%"), "a%20b%2F%FF%25");
    EXPECT_EQ(percent_encode_path("a b/\xff%+"), "a%20b/%FF%25%2B");
    std::string url = "http://host/";
    append_percent_encoded_path("a b/c", url);
    EXPECT_EQ(url, "http://host/a%20b/c");
}

TEST(PercentEncoding, EveryByteSurvivesTheRoundTrip) {
    std::string all;
    for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
    EXPECT_EQ(percent_decode(percent_encode(all)), all);
    EXPECT_EQ(percent_decode(percent_encode_path(all)), all);
    EXPECT_EQ(percent_decode_leniently(percent_encode(all)), all);
}

TEST(PercentEncoding, BrokenTripleIsRefusedOrKeptLeniently) {
    for (const char* broken : {"%", "a%4", "%zz", "%4g", "50%%"}) {
        EXPECT_EQ(percent_decode(broken), std::nullopt) << broken;
        EXPECT_EQ(percent_decode_leniently(broken), broken);
    }
    EXPECT_EQ(percent_decode_leniently("100% of%20it%2"), "100% of it%2");
}

TEST(PercentEncoding, PlusIsASpaceOnlyInQueries) {
    EXPECT_EQ(percent_decode("a+b%2b"), "a+b+");
    EXPECT_EQ(percent_decode("a+b%2b", true), "a b+");
}

// Bytes of a target that are not ASCII were never encoded, so decoding keeps them.
TEST(PercentEncoding, NonAsciiBytesStayUnchanged) {
    EXPECT_EQ(percent_decode("caf\xc3\xa9"), "caf\xc3\xa9");
    EXPECT_EQ(percent_decode_leniently("caf\xc3\xa9%20"), "caf\xc3\xa9 ");
}

}  // namespace
}  // namespace larder
