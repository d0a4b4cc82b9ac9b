// Requests that wait for events, and a node's part of the plan, which does not wait.

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/unit/allocator/service/allocator_api_fixture.h"

namespace larder::allocator {
namespace {

namespace json = boost::json;

class AllocatorWaits : public AllocatorApiTest {
protected:
    // Sends a request and returns its answer, whose status is 0 until it arrives.
    std::shared_ptr<HttpResponse> wait(const std::vector<std::string>& path, const std::string& after,
                                       const std::string& wait_s) {
        auto answer = std::make_shared<HttpResponse>();
        answer->status = 0;
        api.handle(request("GET", path, "", {{"after", after}, {"wait_s", wait_s}}),
                   [answer](HttpResponse response) { *answer = std::move(response); });
        return answer;
    }
    void SetUp() override { ASSERT_EQ(report(report_of("a")).status, 200u); }
};

TEST_F(AllocatorWaits, NodePlanIsAnsweredAtOnce) {
    EXPECT_EQ(ask("GET", {"v1", "nodes", "a", "plan"}).status, 200u);
    EXPECT_EQ(ask("GET", {"v1", "nodes", "lost", "plan"}).status, 404u);
    EXPECT_EQ(ask("GET", {"v1", "nodes", "a", "plan"}, "", {{"after", "1"}}).status, 400u)
        << "the route takes no query";
    pass(11 * kSecond_ns);
    EXPECT_EQ(ask("GET", {"v1", "nodes", "a", "plan"}).status, 404u) << "the node fell silent and must report first";
}

TEST_F(AllocatorWaits, EventRequestWaitsForNextEvent) {
    const std::string last = std::to_string(object(ask("GET", {"v1", "events"})).at("last").to_number<std::uint64_t>());
    const auto answer = wait({"v1", "events"}, last, "30");
    const auto another = wait({"v1", "events"}, last, "2");
    EXPECT_EQ(answer->status, 0u);
    clock.advance_ns(2 * kSecond_ns);
    api.tick();
    EXPECT_EQ(answer->status, 0u);
    ASSERT_EQ(another->status, 200u);
    EXPECT_TRUE(object(*another).at("events").as_array().empty());
    EXPECT_EQ(report({}).status, 400u);
    ASSERT_EQ(answer->status, 200u) << "a refused report is an event";
    EXPECT_EQ(object(*answer).at("events").at(0).at("kind").as_string(), "report_refused");
}

TEST_F(AllocatorWaits, EndOfServiceAnswersAllWaits) {
    const auto events = wait({"v1", "events"}, "100", "30");
    ASSERT_EQ(events->status, 200u) << "a number from before a restart";
    const std::string last = std::to_string(object(*events).at("last").to_number<std::uint64_t>());
    const auto none = wait({"v1", "events"}, last, "30");
    EXPECT_EQ(none->status, 0u);
    api.end_waits();
    EXPECT_EQ(none->status, 200u);
}

}  // namespace
}  // namespace larder::allocator
