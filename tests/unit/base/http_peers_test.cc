#include "base/server/http_peers.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/test_units.h"

namespace larder {

using test::kSecond_ns;
namespace {

TEST(HttpPeers, EachPeerHasItsOwnConnections) {
    HttpPeers peers({.connections_max = 2});
    EXPECT_TRUE(peers.open("a"));
    EXPECT_TRUE(peers.open("a"));
    EXPECT_FALSE(peers.open("a"));
    EXPECT_TRUE(peers.open("b"));
    peers.close("a");
    EXPECT_TRUE(peers.open("a"));
}

TEST(HttpPeers, EachPeerHasItsOwnTokens) {
    HttpPeers peers({.requests_per_second_max = 2, .request_burst = 3});
    for (int i = 0; i < 3; ++i) EXPECT_EQ(peers.take_request("a", 0), 0);
    EXPECT_EQ(peers.take_request("a", 0), 1) << "half a second, rounded up";
    EXPECT_EQ(peers.take_request("b", 0), 0);
    EXPECT_EQ(peers.take_request("a", kSecond_ns / 2), 0);
    EXPECT_EQ(peers.take_request("a", kSecond_ns / 2), 1);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(peers.take_request("a", 100 * kSecond_ns), 0) << "never above the burst";
    EXPECT_EQ(peers.take_request("a", 100 * kSecond_ns), 1);
}

TEST(HttpPeers, RefusedRequestGetsSecondsToWait) {
    HttpPeers peers({.requests_per_second_max = 0.1, .request_burst = 0});
    EXPECT_EQ(peers.take_request("a", 0), 0);
    EXPECT_EQ(peers.take_request("a", 0), 10);
    EXPECT_EQ(peers.take_request("a", 4 * kSecond_ns), 6);
}

TEST(HttpPeers, ReconnectingGivesNoNewTokens) {
    HttpPeers peers({.connections_max = 1, .requests_per_second_max = 1, .request_burst = 1});
    ASSERT_TRUE(peers.open("a"));
    EXPECT_EQ(peers.take_request("a", 0), 0);
    peers.close("a");
    ASSERT_TRUE(peers.open("a"));
    EXPECT_EQ(peers.take_request("a", 0), 1);
}

TEST(HttpPeers, KnownPeersStayBounded) {
    HttpPeers peers({.connections_max = 8, .requests_per_second_max = 10, .request_burst = 10});
    ASSERT_TRUE(peers.open("stays"));
    for (int i = 0; i < 100'000; ++i) {
        // Ten thousand peers a second, each with a full bucket again after 0.1 s.
        EXPECT_EQ(peers.take_request(std::to_string(i), i * (kSecond_ns / 10'000)), 0);
    }
    EXPECT_LT(peers.known_peers(), 5000u);
    peers.close("stays");
}

}  // namespace
}  // namespace larder
