#include "cache/remote/azure_signature.h"

#include <gtest/gtest.h>

namespace larder::cache {
namespace {

// The form is that of "Authorize with Shared Key" in Azure Storage's documentation.
TEST(AzureSignature, SignsPathRangeAndHeaders) {
    const AzureRequest request{.url = "https://acct.blob.core.windows.net/box/a%20b/c.jpg",
                               .range = "bytes=0-99",
                               .date = "Fri, 26 Jun 2015 23:39:12 GMT",
                               .version = "2021-12-02"};
    EXPECT_EQ(azure_string_to_sign("acct", request),
              "GET\n\n\n\n\n\n\n\n\n\n\nbytes=0-99\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2021-12-02\n"
              "/acct/box/a%20b/c.jpg");
}

TEST(AzureSignature, SignsDecodedParametersInOrder) {
    const AzureRequest request{.url = "http://host:1/acct/box?restype=container&comp=list&prefix=a%2Fb&marker",
                               .range = "",
                               .date = "D",
                               .version = "V"};
    EXPECT_EQ(azure_string_to_sign("acct", request),
              "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:D\nx-ms-version:V\n/acct/acct/box\ncomp:list\nmarker:\nprefix:a/b\n"
              "restype:container");
}

// openssl dgst -sha256 -mac HMAC -macopt key:key -binary | base64, of the text of the first test.
TEST(AzureSignature, IsAnHmacOfTheText) {
    const AzureRequest request{.url = "https://acct.blob.core.windows.net/box/a%20b/c.jpg",
                               .range = "bytes=0-99",
                               .date = "Fri, 26 Jun 2015 23:39:12 GMT",
                               .version = "2021-12-02"};
    EXPECT_EQ(sign_azure_request("acct", "key", request),
              "SharedKey acct:5zMtu7+Vcz4fEH2TAQNRdFcTHdKTiktq3/utDyPAxGk=");
}

}  // namespace
}  // namespace larder::cache
