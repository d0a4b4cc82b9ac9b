#include "cache/remote/s3_listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace larder::cache {
namespace {

using testing::HasSubstr;

Result<BucketPage> parse(std::string_view xml) {
    return parse_s3_page(std::as_bytes(std::span(xml)));
}

TEST(S3Listing, QueryIsSortedAndEncodedForSigning) {
    EXPECT_EQ(s3_list_query("", ""), "list-type=2&max-keys=1000&prefix=");
    EXPECT_EQ(s3_list_query("a b/ü", "x+/="),
              "continuation-token=x%2B%2F%3D&list-type=2&max-keys=1000&prefix=a%20b%2F%C3%BC");
}

TEST(S3Listing, ReadsAPage) {
    const auto page = parse(
        "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
        "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><NextContinuationToken>t/1=</"
        "NextContinuationToken>"
        "<Contents><Key>a+b/%2Bc%26.jpg</Key><Size>12</Size><ETag>&quot;abc&quot;</ETag></Contents>"
        "<Contents><Key>d</Key><Size>0</Size></Contents></ListBucketResult>");
    ASSERT_TRUE(page) << page.error().message;
    ASSERT_EQ(page->objects.size(), 2u);
    EXPECT_EQ(page->objects[0].key, "a b/+c&.jpg");
    EXPECT_EQ(page->objects[0].size_bytes, 12u);
    EXPECT_EQ(page->objects[0].version, "\"abc\"");
    EXPECT_EQ(page->next, "t/1=");
}

TEST(S3Listing, KeysAreNotDecodedIfTheServerDoesNotEncode) {
    const auto page =
        parse("<ListBucketResult><Contents><Key>a+b%20</Key><Size>1</Size></Contents></ListBucketResult>");
    ASSERT_TRUE(page);
    EXPECT_EQ(page->objects[0].key, "a+b%20");
    EXPECT_EQ(page->next, "");
}

TEST(S3Listing, InvalidPageIsAnError) {
    const auto message = [](std::string_view xml) {
        const auto page = parse(xml);
        return page ? std::string() : page.error().message;
    };
    EXPECT_THAT(message("not xml"), HasSubstr("not XML"));
    EXPECT_THAT(message("<Error/>"), HasSubstr("no ListBucketResult"));
    EXPECT_THAT(message("<ListBucketResult><Contents><Key>a</Key><Size>x</Size></Contents></ListBucketResult>"),
                HasSubstr("no size"));
    EXPECT_THAT(message("<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>"),
                HasSubstr("no key"));
    EXPECT_THAT(message("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"),
                HasSubstr("it is truncated, but has no continuation token"));
}

}  // namespace
}  // namespace larder::cache
