#include "cache/remote/azure_account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace larder::cache {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(AzureConnectionString, NamesAccountKeyAndEndpoint) {
    const auto account = parse_connection_string(
        "DefaultEndpointsProtocol=https;AccountName=acct;AccountKey=a2V5PT0=;EndpointSuffix=core.chinacloudapi.cn;;");
    ASSERT_TRUE(account) << account.error().message;
    EXPECT_EQ(account->name, "acct");
    EXPECT_EQ(account->key, "key==");
    EXPECT_EQ(account->endpoint, "https://acct.blob.core.chinacloudapi.cn");
    EXPECT_EQ(parse_connection_string("AccountName=acct;AccountKey=a2V5")->endpoint,
              "https://acct.blob.core.windows.net");
}

TEST(AzureConnectionString, NamesASasAndItsEndpoint) {
    const auto account =
        parse_connection_string("BlobEndpoint=http://localhost:1/acct;SharedAccessSignature=?sv=1&sig=a%3D");
    ASSERT_TRUE(account) << account.error().message;
    EXPECT_EQ(account->sas, "sv=1&sig=a%3D");
    EXPECT_EQ(account->endpoint, "http://localhost:1/acct");
    EXPECT_EQ(account->key, "");
}

TEST(AzureConnectionString, WrongPartIsRefusedWithoutQuotingIt) {
    for (const char* text : {"AccountName=a;AccountKey=s3cret!", "s3cret", "SharedAccessSignature=sig=s3cret#x",
                             "SharedAccessSignature=sig=s3cret x", "SharedAccessSignature=sig=s3cret\r\nX: y"}) {
        const auto account = parse_connection_string(text);
        ASSERT_FALSE(account) << text;
        EXPECT_THAT(account.error().message, AllOf(HasSubstr("Azure credentials"), Not(HasSubstr("s3cret"))));
    }
}

TEST(AzureAccount, SasWithoutAnAccountsNameGoesToNoAccount) {
    ::setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=a%3D", 1);
    const auto nameless = find_azure_account({.endpoint = "https://any.blob.core.windows.net"});
    ::setenv("AZURE_STORAGE_ACCOUNT", "acct", 1);
    const auto own = find_azure_account({.endpoint = "https://acct.blob.core.windows.net"});
    const auto other = find_azure_account({.endpoint = "https://any.blob.core.windows.net"});
    for (const char* name : {"AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_ACCOUNT"}) ::unsetenv(name);
    ASSERT_FALSE(nameless);
    EXPECT_THAT(nameless.error().message, AllOf(HasSubstr("of its own account"), Not(HasSubstr("sig="))));
    EXPECT_FALSE(other);
    ASSERT_TRUE(own) << own.error().message;
    EXPECT_EQ(own->endpoint, "https://acct.blob.core.windows.net");
}

}  // namespace
}  // namespace larder::cache
