#include "cache/remote/s3_hint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace larder::cache {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr S3RequestInfo kSigned{.bucket = "train", .endpoint = "https://s3.example", .region = "", .is_signed = true};

TEST(S3Hint, DeniedWithCredentialsPointsToPolicyAndRequesterPays) {
    EXPECT_THAT(s3_hint(403, "AccessDenied", kSigned), HasSubstr("let the policy of bucket train allow"));
    EXPECT_THAT(s3_hint(403, "AccessDenied", kSigned), HasSubstr("--requester-pays"));
    EXPECT_THAT(s3_hint(403, "", kSigned), HasSubstr("let the policy of bucket train allow"));
    S3RequestInfo pays = kSigned;
    pays.requester_pays = true;
    EXPECT_THAT(s3_hint(403, "AccessDenied", pays), Not(HasSubstr("--requester-pays")));
}

TEST(S3Hint, DeniedWithoutCredentialsPointsToCredentials) {
    S3RequestInfo plain = kSigned;
    plain.is_signed = false;
    EXPECT_THAT(s3_hint(403, "AccessDenied", plain), HasSubstr("bucket train is not public: add it with credentials"));
}

TEST(S3Hint, ErrorCodeHintNamesTheCause) {
    EXPECT_THAT(s3_hint(403, "InvalidAccessKeyId", kSigned), HasSubstr("AWS_ACCESS_KEY_ID"));
    EXPECT_THAT(s3_hint(403, "SignatureDoesNotMatch", kSigned), HasSubstr("AWS_SECRET_ACCESS_KEY"));
    EXPECT_THAT(s3_hint(403, "RequestTimeTooSkewed", kSigned), HasSubstr("clock"));
    EXPECT_THAT(s3_hint(400, "ExpiredToken", kSigned), HasSubstr("session token"));
    EXPECT_EQ(s3_hint(404, "NoSuchBucket", kSigned),
              "there is no bucket train at https://s3.example: check the URL and --endpoint");
}

TEST(S3Hint, WrongRegionHintNamesTheRegionIfKnown) {
    EXPECT_THAT(s3_hint(301, "", kSigned), HasSubstr("another region: give --region"));
    S3RequestInfo elsewhere = kSigned;
    elsewhere.region = "eu-west-1";
    EXPECT_THAT(s3_hint(400, "AuthorizationHeaderMalformed", elsewhere), HasSubstr("give --region eu-west-1"));
}

TEST(S3Hint, OtherErrorsGiveNoHint) {
    EXPECT_THAT(s3_hint(404, "NoSuchKey", kSigned), IsEmpty());
    EXPECT_THAT(s3_hint(500, "InternalError", kSigned), IsEmpty());
}

}  // namespace
}  // namespace larder::cache
