// Requests to a peer, which carry the peers' token.

#include "cache/peers/peer_origin.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "cache/remote/http_transfers.h"
#include "tests/support/http_service.h"

namespace larder::cache {
namespace {

TEST(PeerOrigin, TokenIsSentToThePeerAndToNobodyThatThePeerRedirectsTo) {
    std::atomic<int> strangers_requests = 0;
    const test::HttpService stranger([&](const HttpRequest&, const HttpRespond& respond) {
        ++strangers_requests;
        respond({.body = "stolen"});
    });
    const std::string elsewhere = "http://127.0.0.1:" + std::to_string(stranger.port) + "/elsewhere";
    std::string token;  // belongs to the peer's thread until the answer has come
    const test::HttpService peer([&](const HttpRequest& request, const HttpRespond& respond) {
        token = request.bearer_token;
        respond({.status = 307, .body = "", .headers = {{"Location", elsewhere}}});
    });
    const auto transfers = HttpTransfers::start({});
    ASSERT_TRUE(transfers.has_value()) << transfers.error().message;
    const PeerOrigin origin("http://127.0.0.1:" + std::to_string(peer.port), "secret");
    HttpGet get{.origin = &origin,
                .url = origin.endpoint() + "/v1",
                .ask = HttpRequestKind::text,
                .object_bytes = 1000,
                .retry_for_ns = 1};
    (*transfers)->run(get);
    EXPECT_EQ(get.outcome, HttpOutcome::failed);
    EXPECT_EQ(token, "secret");
    EXPECT_EQ(strangers_requests, 0);
}

}  // namespace
}  // namespace larder::cache
