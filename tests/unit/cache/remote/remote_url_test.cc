#include "cache/remote/remote_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace larder::cache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RemoteUrl parsed(std::string_view url) {
    auto result = parse_remote_url(url);
    EXPECT_TRUE(result) << (result ? "" : result.error().message);
    return result ? *result : RemoteUrl{};
}

std::string error(std::string_view url) {
    const auto result = parse_remote_url(url);
    return result ? "" : result.error().message;
}

TEST(RemoteUrl, FilesArePathsOrUrls) {
    EXPECT_EQ(parsed("/a//b/./c/").root, "/a/b/c");
    EXPECT_EQ(parsed("file:///a%20b").root, "/a b");
    EXPECT_EQ(parsed("/a b").text(), "file:///a b");
    EXPECT_THAT(error("relative/path"), HasSubstr("\"relative/path\" is not file:///path, an absolute path, s3://"));
    EXPECT_THAT(error("ftp://host/x"), HasSubstr("ftp://host/x"));
}

TEST(RemoteUrl, S3UrlIsABucketAndAPrefix) {
    const RemoteUrl url = parsed("s3://bucket/a/b/");
    EXPECT_EQ(url.scheme, RemoteScheme::s3);
    EXPECT_EQ(url.base, "bucket");
    EXPECT_EQ(url.root, "a/b");
    EXPECT_EQ(url.text(), "s3://bucket/a/b");
    EXPECT_EQ(parsed("s3://bucket").text(), "s3://bucket");
    EXPECT_THAT(error("s3:///key"), HasSubstr("names no bucket"));
    EXPECT_THAT(error("s3://buck et/key"), HasSubstr("names no bucket"));
}

TEST(RemoteUrl, SingleTarSplitsIntoDirectoryAndName) {
    const RemoteUrl s3 = parsed("s3://bucket/a/train.tar");
    EXPECT_EQ(s3.root, "a");
    EXPECT_EQ(s3.only_shard, "train.tar");
    EXPECT_EQ(parsed("s3://bucket/train.tar").root, "");
    const RemoteUrl http = parsed("https://host/a/train.tar");
    EXPECT_EQ(http.text(), "https://host/a");
    EXPECT_THAT(http.names, ElementsAre("train.tar"));
}

TEST(RemoteUrl, StoresNameABucketAndAPrefix) {
    const RemoteUrl gcs = parsed("gs://bucket/a/b/");
    EXPECT_EQ(gcs.scheme, RemoteScheme::gcs);
    EXPECT_EQ(gcs.base, "bucket");
    EXPECT_EQ(gcs.root, "a/b");
    EXPECT_EQ(gcs.text(), "gs://bucket/a/b");
    const RemoteUrl azure = parsed("az://container/a/train.tar");
    EXPECT_EQ(azure.scheme, RemoteScheme::azure);
    EXPECT_EQ(azure.only_shard, "train.tar");
    EXPECT_EQ(azure.text(), "az://container/a");
    EXPECT_THAT(error("gs:///a"), HasSubstr("names no bucket: gs://bucket/prefix"));
    EXPECT_THAT(error("az://c@acct/a"), HasSubstr("names no container: az://container/prefix"));
}

TEST(RemoteUrl, OptionsAreForTheStoresThatHaveThem) {
    const auto refused = [](const RemoteOptions& options, std::string_view url) {
        const auto checked = check_remote_options(options, url);
        return checked ? std::string() : checked.error().message;
    };
    for (const char* url : {"s3://b", "gs://b", "az://b"}) {
        EXPECT_EQ(refused({.endpoint = "http://h:1", .profile = "p", .unsigned_access = true}, url), "") << url;
        EXPECT_THAT(refused({.follow_symlinks = true}, url), HasSubstr("follow_symlinks"));
    }
    EXPECT_EQ(refused({.region = "r", .requester_pays = true}, "s3://b"), "");
    for (const char* url : {"gs://b", "az://b", "http://h/x", "/data"}) {
        EXPECT_THAT(refused({.region = "r"}, url), HasSubstr("are for s3://")) << url;
        EXPECT_THAT(refused({.requester_pays = true}, url), HasSubstr("are for s3://")) << url;
    }
    for (const char* url : {"http://h/x", "/data"}) {
        EXPECT_THAT(refused({.profile = "p"}, url), HasSubstr("are for s3://, gs:// and az://")) << url;
    }
    EXPECT_EQ(refused({.follow_symlinks = true}, "/data"), "");
}

TEST(RemoteUrl, HttpObjectsComeFromBracesOrAList) {
    const RemoteUrl braces = parsed("http://host:8080/data/train-{08..11}.tar");
    EXPECT_EQ(braces.text(), "http://host:8080/data");
    EXPECT_THAT(braces.names, ElementsAre("train-08.tar", "train-09.tar", "train-10.tar", "train-11.tar"));
    const RemoteUrl deep = parsed("http://host/data/{train,val}/{0..1}.tar");
    EXPECT_EQ(deep.text(), "http://host/data");
    EXPECT_THAT(deep.names, ElementsAre("train/0.tar", "train/1.tar", "val/0.tar", "val/1.tar"));
    const RemoteUrl list = parsed("https://host/data/all.txt");
    EXPECT_EQ(list.list, "all.txt");
    EXPECT_EQ(list.text(), "https://host/data");
    EXPECT_EQ(parsed("https://host/a%20b/").text(), "https://host/a%20b");
}

TEST(RemoteUrl, HttpUrlWithSecretOrBadBracesIsRefused) {
    EXPECT_THAT(error("https://me:secret@host/x"), AllOf(HasSubstr("password"), Not(HasSubstr("secret"))));
    EXPECT_THAT(error("https://host/x?token=secret"), AllOf(HasSubstr("query"), Not(HasSubstr("secret"))));
    EXPECT_THAT(error("http:///x"), HasSubstr("names no host"));
    EXPECT_THAT(error("http://host/{5..1}"), HasSubstr("not a range"));
    EXPECT_THAT(error("http://host/{1..5"), HasSubstr("without its }"));
    EXPECT_THAT(error("http://host/{a}"), HasSubstr("neither"));
    EXPECT_THAT(error("http://host/{0..9999999}"), HasSubstr("a million"));
    EXPECT_THAT(error("http://host/{0..9999}{0..9999}"), HasSubstr("a million"));
}

TEST(RemoteUrl, EndpointWithoutHostOrWithSecretIsRefused) {
    EXPECT_TRUE(check_endpoint("http://localhost:9000"));
    EXPECT_TRUE(check_endpoint("https://store.example/s3/"));
    for (const char* endpoint : {"", "localhost:9000", "ftp://secret", "http://", "https:///secret",
                                 "http://me:secret@host", "https://host/?secret", "https://host/#secret"}) {
        const auto checked = check_endpoint(endpoint);
        ASSERT_FALSE(checked) << endpoint;
        EXPECT_THAT(checked.error().message, AllOf(HasSubstr("endpoint"), Not(HasSubstr("secret"))));
    }
}

TEST(RemoteUrl, RefusalsQuoteWhatTheUserTyped) {
    const auto message = [](std::string_view endpoint) { return check_endpoint(endpoint).error().message; };
    EXPECT_EQ(message("localhost:9"), "the endpoint \"localhost:9\" is not http://host:port or https://host:port");
    EXPECT_THAT(message("ftp://host"), HasSubstr("begins with ftp://"));
    EXPECT_THAT(message("http:///path"), HasSubstr("names no host"));
    EXPECT_THAT(message("http://127.0.0.1:"), HasSubstr("has no port after its colon"));
    EXPECT_THAT(error("http://u:p@host/all.txt"), HasSubstr("the URL has a user or password in it"));
}

TEST(RemoteUrl, NormalisingKeepsObjectSelectors) {
    EXPECT_EQ(normalise_url("http://host/a/{0..3}.tar"), "http://host/a/{0..3}.tar");
    EXPECT_EQ(normalise_url("s3://bucket/a//"), "s3://bucket/a");
    EXPECT_EQ(normalise_url("/a//b"), "file:///a/b");
}

}  // namespace
}  // namespace larder::cache
