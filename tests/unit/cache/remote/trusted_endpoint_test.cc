#include "cache/remote/trusted_endpoint.h"

#include <gtest/gtest.h>

#include <array>

namespace larder::cache {
namespace {

constexpr std::array<std::string_view, 2> kHosts{".googleapis.com", "acct.blob.core.windows.net"};

TEST(TrustedEndpoint, IsAHostOfTheStoreOverTls) {
    for (const char* endpoint : {"https://storage.googleapis.com", "https://storage-x.p.googleapis.com:443/",
                                 "https://acct.blob.core.windows.net/"}) {
        EXPECT_TRUE(is_endpoint_of(endpoint, kHosts)) << endpoint;
    }
}

TEST(TrustedEndpoint, IsNotAHostThatLooksLikeOne) {
    for (const char* endpoint :
         {"http://storage.googleapis.com", "https://googleapis.com.example.org", "https://evilgoogleapis.com",
          "https://example.org/.googleapis.com", "https://example.org:1.googleapis.com",
          "https://example.org\\.googleapis.com", "https://example.org#.googleapis.com",
          "https://example.org?.googleapis.com", "https://me@storage.googleapis.com", "https://%2e.googleapis.com",
          "https://other.blob.core.windows.net", "https://x.acct.blob.core.windows.net", "https://", ""}) {
        EXPECT_FALSE(is_endpoint_of(endpoint, kHosts)) << endpoint;
    }
}

}  // namespace
}  // namespace larder::cache
