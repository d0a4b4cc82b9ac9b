#include "cache/remote/azure_listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace larder::cache {
namespace {

using testing::HasSubstr;

Result<BucketPage> parse_azure(std::string_view xml) {
    return parse_azure_page(std::as_bytes(std::span(xml)));
}

TEST(AzureListing, QueryIsEncoded) {
    EXPECT_EQ(azure_list_query("", ""), "restype=container&comp=list&maxresults=1000&prefix=");
    EXPECT_EQ(azure_list_query("a b/ü", "x+/="),
              "restype=container&comp=list&maxresults=1000&prefix=a%20b%2F%C3%BC&marker=x%2B%2F%3D");
}

TEST(AzureListing, ReadsAPage) {
    const auto page = parse_azure(
        "\xef\xbb\xbf<?xml version=\"1.0\"?><EnumerationResults ContainerName=\"c\"><Blobs>"
        "<Blob><Name>a b/+c&amp;%20.jpg</Name><Properties><Content-Length>12</Content-Length><Etag>0x8D</Etag>"
        "</Properties></Blob>"
        "<Blob><Name "
        "Encoded=\"true\">d%EF%BF%BE</Name><Properties><Content-Length>1</Content-Length></Properties></Blob>"
        "<Blob><Name> </Name><Properties><Content-Length>1</Content-Length></Properties></Blob>"
        "<Blob><Name>dir</Name><Properties><ResourceType>directory</ResourceType><Content-Length>0</Content-Length>"
        "</Properties></Blob>"
        "</Blobs><NextMarker>t/1=</NextMarker></EnumerationResults>");
    ASSERT_TRUE(page) << page.error().message;
    ASSERT_EQ(page->objects.size(), 3u);
    EXPECT_EQ(page->objects[0].key, "a b/+c&%20.jpg");
    EXPECT_EQ(page->objects[0].size_bytes, 12u);
    EXPECT_EQ(page->objects[0].version, "0x8D");
    EXPECT_EQ(page->objects[1].key, "d\xef\xbf\xbe");
    EXPECT_EQ(page->objects[2].key, " ");
    EXPECT_EQ(page->next, "t/1=");
}

TEST(AzureListing, LastPageMayHaveNoBlobs) {
    const auto page = parse_azure("<EnumerationResults><Blobs /><NextMarker /></EnumerationResults>");
    ASSERT_TRUE(page) << page.error().message;
    EXPECT_TRUE(page->objects.empty());
    EXPECT_EQ(page->next, "");
}

TEST(AzureListing, InvalidPageIsAnError) {
    const auto message = [](const std::string& xml) {
        const auto page = parse_azure(xml);
        return page ? std::string() : page.error().message;
    };
    EXPECT_THAT(message("not xml"), HasSubstr("not XML"));
    EXPECT_THAT(message("<Error/>"), HasSubstr("no EnumerationResults"));
    const std::string begin = "<EnumerationResults><Blobs><Blob>";
    const std::string end = "</Blob></Blobs></EnumerationResults>";
    for (const char* blob : {"<Name>a</Name>", "<Properties><Content-Length>1</Content-Length></Properties>",
                             "<Name>a</Name><Properties><Content-Length>x</Content-Length></Properties>"}) {
        EXPECT_THAT(message(begin + blob + end), HasSubstr("no name or no size")) << blob;
    }
}

}  // namespace
}  // namespace larder::cache
