#include "cache/remote/http_outage.h"

#include <gtest/gtest.h>

#include <vector>

namespace larder::cache {
namespace {

TEST(HttpOutages, ListenerHearsOfAChangeBeforeTheListShowsIt) {
    std::vector<std::size_t> shown;
    HttpOutages* asked = nullptr;
    HttpOutages outages([&](const HttpOutage&) { shown.push_back(asked->lasting().size()); });
    asked = &outages;
    outages.tell("http://a:1", HttpOutage{.began_ns = 1});
    ASSERT_EQ(outages.lasting().size(), 1u);
    EXPECT_EQ(outages.lasting().front().endpoint, "http://a:1");
    outages.tell("http://a:1", HttpOutage{.began_ns = 1, .ended_ns = 2, .ended_by_answer = true});
    EXPECT_TRUE(outages.lasting().empty());
    EXPECT_EQ(shown, (std::vector<std::size_t>{0, 1}));
}

}  // namespace
}  // namespace larder::cache
