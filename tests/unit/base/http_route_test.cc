#include "base/server/http_route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace larder::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(HttpRoute, PathMatchesPatternSegmentBySegment) {
    std::string name = "unset";
    EXPECT_TRUE(match_route("/v1/status", {"v1", "status"}, name));
    EXPECT_FALSE(match_route("/v1/status", {"v1"}, name));
    EXPECT_FALSE(match_route("/v1/status", {"v1", "status", "x"}, name));
    EXPECT_FALSE(match_route("/v1/status", {"v1", "jobs"}, name));
    EXPECT_FALSE(match_route("/v1/status", {}, name));
    EXPECT_EQ(name, "unset");
}

TEST(HttpRoute, RootHasNoSegment) {
    std::string name = "unset";
    EXPECT_TRUE(match_route("/", {}, name));
    EXPECT_FALSE(match_route("/", {"v1"}, name));
}

TEST(HttpRoute, SegmentInBracesMatchesAnyNonEmptyText) {
    std::string name = "unset";
    EXPECT_FALSE(match_route("/v1/datasets/{name}/quota", {"v1", "datasets", "", "quota"}, name));
    EXPECT_FALSE(match_route("/v1/datasets/{name}/quota", {"v1", "datasets", "images", "pin"}, name));
    EXPECT_FALSE(match_route("/v1/datasets/{name}/quota", {"v1", "datasets", "images"}, name));
    EXPECT_EQ(name, "unset") << "a path that does not match leaves the name alone";
    EXPECT_TRUE(match_route("/v1/datasets/{name}/quota", {"v1", "datasets", "a/b", "quota"}, name));
    EXPECT_EQ(name, "a/b");
    EXPECT_TRUE(match_route("/v1/tasks/{id}", {"v1", "tasks", "77"}, name));
    EXPECT_EQ(name, "77");
}

TEST(HttpRoute, EverySegmentInBracesIsNamedInOrder) {
    std::vector<std::string> names{"unset"};
    EXPECT_FALSE(match_route("/v1/peers/{dataset}/blocks/{block}", {"v1", "peers", "images", "blocks"}, names));
    EXPECT_THAT(names, ElementsAre("unset"));
    EXPECT_TRUE(match_route("/v1/peers/{dataset}/blocks/{block}", {"v1", "peers", "images", "blocks", "7"}, names));
    EXPECT_THAT(names, ElementsAre("images", "7"));
    EXPECT_TRUE(match_route("/v1", {"v1"}, names));
    EXPECT_THAT(names, ElementsAre());
}

TEST(HttpRoute, UnknownQueryKeysAreRefusedWithKnownOnes) {
    HttpRequest request;
    EXPECT_TRUE(check_query_keys("", request));
    request.query = {{"after", "1"}, {"wait", "2"}};
    EXPECT_TRUE(check_query_keys("after wait limit", request));
    EXPECT_THAT(check_query_keys("after wait_s", request).error().message, HasSubstr("\"wait\""));
    EXPECT_THAT(check_query_keys("after wait_s", request).error().message, HasSubstr("known: after wait_s"));
    EXPECT_EQ(check_query_keys("", request).error().code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace larder::test
