#include "cache/remote/gcs_listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace larder::cache {
namespace {

using testing::HasSubstr;

Result<BucketPage> parse_gcs(std::string_view json) {
    return parse_gcs_page(std::as_bytes(std::span(json)));
}

TEST(GcsListing, QueryIsEncoded) {
    EXPECT_EQ(gcs_list_query("", ""), "maxResults=1000&fields=nextPageToken,items(name,size,generation)&prefix=");
    EXPECT_THAT(gcs_list_query("a b/ü", "x+/="), HasSubstr("&prefix=a%20b%2F%C3%BC&pageToken=x%2B%2F%3D"));
}

TEST(GcsListing, ReadsAPage) {
    const auto page = parse_gcs(
        R"({"nextPageToken": "t/1=", "items": [{"name": "a b/+c&.jpg", "size": "12", "generation": "1700000000000001"},
            {"name": "d", "size": "0", "generation": "2", "etag": "x"}]})");
    ASSERT_TRUE(page) << page.error().message;
    ASSERT_EQ(page->objects.size(), 2u);
    EXPECT_EQ(page->objects[0].key, "a b/+c&.jpg");
    EXPECT_EQ(page->objects[0].size_bytes, 12u);
    EXPECT_EQ(page->objects[0].version, "1700000000000001");
    EXPECT_EQ(page->next, "t/1=");
}

TEST(GcsListing, LastPageMayHaveNoItems) {
    for (const char* text : {R"({"kind": "storage#objects"})", R"({"items": null})"}) {
        const auto page = parse_gcs(text);
        ASSERT_TRUE(page) << page.error().message;
        EXPECT_TRUE(page->objects.empty());
        EXPECT_EQ(page->next, "");
    }
}

TEST(GcsListing, InvalidPageIsAnError) {
    const auto message = [](std::string_view json) {
        const auto page = parse_gcs(json);
        return page ? std::string() : page.error().message;
    };
    EXPECT_THAT(message("<html>"), HasSubstr("not JSON"));
    EXPECT_THAT(message("[]"), HasSubstr("not a JSON object"));
    EXPECT_THAT(message(R"({"items": {}})"), HasSubstr("not a list"));
    EXPECT_THAT(message(R"({"items": [1]})"), HasSubstr("an entry is not a JSON object"));
    for (const char* item : {R"({"name": "a"})", R"({"size": "1"})", R"({"name": "a", "size": 1})",
                             R"({"name": "a", "size": "1x"})", R"({"name": "", "size": "1"})"}) {
        EXPECT_THAT(message(R"({"items": [)" + std::string(item) + "]}"), HasSubstr("no name or no size")) << item;
    }
}

}  // namespace
}  // namespace larder::cache
