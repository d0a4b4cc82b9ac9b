#include "cache/remote/store_error.h"

#include <gtest/gtest.h>

namespace larder::cache {
namespace {

TEST(StoreError, HasCodeAndFirstLineOfTheMessage) {
    const StoreError error = parse_store_error(
        "\xef\xbb\xbf<?xml version=\"1.0\"?><Error><Code>AuthenticationFailed</Code><Message>It failed.\nRequestId:1"
        "</Message><AuthenticationErrorDetail>signed</AuthenticationErrorDetail></Error>");
    EXPECT_EQ(error.code, "AuthenticationFailed");
    EXPECT_EQ(error.message, "It failed.");
    EXPECT_EQ(parse_store_error("<html>").code, "");
    EXPECT_EQ(parse_store_error("").message, "");
}

TEST(StoreError, ExplanationJoinsWhatIsKnown) {
    const StoreError error{.code = "Denied", .message = "No.", .region = {}};
    EXPECT_EQ(explain_store_error(error, ""), "Denied: No.");
    EXPECT_EQ(explain_store_error(error, "ask"), "Denied: ask (the server says: No.)");
    EXPECT_EQ(explain_store_error({}, "ask"), "ask");
    EXPECT_EQ(explain_store_error({}, ""), "");
}

}  // namespace
}  // namespace larder::cache
