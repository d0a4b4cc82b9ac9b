// Listings of a bucket that a store must not give: they do not end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <memory>
#include <string>

#include "cache/remote/gcs_origin.h"
#include "cache/remote/http_objects.h"
#include "cache/remote/http_transfers.h"
#include "cache/remote/remote_url.h"
#include "tests/support/http_service.h"

namespace larder::cache {
namespace {

using ::testing::HasSubstr;

class HttpListing : public ::testing::Test {
protected:
    Result<ObjectListing> list(std::uint64_t bytes_max) {
        const RemoteUrl url = parse_remote_url("gs://bucket").value();
        const std::string endpoint = "http://127.0.0.1:" + std::to_string(service_.port);
        const HttpRoot root = make_gcs_root(url, {.endpoint = endpoint, .unsigned_access = true}).value();
        return make_http_objects(url, root, *transfers_, {}, bytes_max)->list({}, {});
    }

    std::atomic<int> pages_ = 0;
    int last_page_ = 0;
    bool names_one_page_twice_ = false;
    std::string name_ = "name";
    test::HttpService service_{[this](const HttpRequest&, const HttpRespond& respond) {
        const std::string number = std::to_string(++pages_);
        std::string next = names_one_page_twice_ ? "same" : "page" + number;
        if (pages_ >= last_page_) next.clear();
        respond({.body = R"({"items": [{"name": ")" + name_ + number + R"(", "size": "1", "generation": "1"}],)" +
                         R"("nextPageToken": ")" + next + "\"}"});
    }};
    std::unique_ptr<HttpTransfers> transfers_ = std::move(HttpTransfers::start({}).value());
};

TEST_F(HttpListing, EndsWithItsLastPage) {
    last_page_ = 20;
    const auto listing = list(std::numeric_limits<std::uint64_t>::max());
    ASSERT_TRUE(listing) << listing.error().message;
    EXPECT_EQ(listing->objects.size(), 20u);
}

TEST_F(HttpListing, SamePageTwiceIsAnError) {
    last_page_ = 20;
    names_one_page_twice_ = true;
    const auto listing = list(std::numeric_limits<std::uint64_t>::max());
    ASSERT_FALSE(listing);
    EXPECT_EQ(listing.error().code, ErrorCode::protocol);
    EXPECT_THAT(listing.error().message, HasSubstr("the listing of gs://bucket does not end"));
    EXPECT_EQ(pages_, 2);
}

TEST_F(HttpListing, TooManyKeysAreAnErrorAlsoIfTheyAreLeftOut) {
    last_page_ = 2000;
    for (const char* name : {"name", ".hidden"}) {
        pages_ = 0;
        name_ = name;
        const auto listing = list(1024);
        ASSERT_FALSE(listing);
        EXPECT_EQ(listing.error().code, ErrorCode::unsupported);
        EXPECT_THAT(listing.error().message, HasSubstr("takes more than 1.00 KiB of memory"));
        EXPECT_LT(pages_, 40);
    }
}

}  // namespace
}  // namespace larder::cache
