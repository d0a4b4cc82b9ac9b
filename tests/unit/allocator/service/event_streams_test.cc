// Event streams over a real connection: past events, new events, and readers that disconnect.

#include "allocator/service/event_streams.h"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "allocator/protocol/codec.h"
#include "allocator/service/allocator_api.h"
#include "base/clock.h"
#include "tests/support/http_service.h"
#include "tests/unit/allocator/service/allocator_api_fixture.h"

namespace larder::allocator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class EventStreamsTest : public testing::Test {
protected:
    ManualClock clock{1'000'000'000};
    Cluster cluster{{.remote_bytes_per_second = 1e9}};
    AllocatorApi api{cluster, clock};
    test::HttpService service{
        [this](const HttpRequest& request, const HttpRespond& respond) { api.handle(request, respond); }};

    void register_job(const std::string& name) {
        const auto answer = http_request(service.socket, "POST", "/v1/jobs", R"({"name":")" + name + R"("})");
        ASSERT_TRUE(answer.has_value());
        ASSERT_EQ(answer->status, 200u);
    }
    // Reads until the text contains `last`.
    std::string read(const std::string& target, const std::string& last, const std::function<void()>& once_begun) {
        std::string got;
        bool begun = false;
        const auto read = http_get_stream(service.socket, target, [&](std::string_view part) {
            got += part;
            if (!std::exchange(begun, true)) once_begun();
            return !got.contains(last);
        });
        EXPECT_TRUE(read.has_value()) << read.error().message;
        return got;
    }
};

TEST_F(EventStreamsTest, ReaderGetsPastAndNewEvents) {
    register_job("one");
    const std::string got = read("/v1/events/stream", "job three", [&] {
        register_job("two");
        register_job("three");
    });
    EXPECT_THAT(got, StartsWith("id: 1\nevent: job_registered\ndata: {\"number\":1,"));
    EXPECT_THAT(got, HasSubstr("job one is registered\"}\n\n"));
    EXPECT_THAT(got, HasSubstr("id: 2\nevent: job_registered\n"));
    EXPECT_THAT(got, HasSubstr("id: 3\nevent: job_registered\n"));
}

TEST_F(EventStreamsTest, ReaderResumesAfterItsLastEvent) {
    register_job("one");
    register_job("two");
    const std::string got = read("/v1/events/stream?after=1", "job two", [] {});
    EXPECT_THAT(got, StartsWith("id: 2\n"));
    EXPECT_THAT(got, Not(HasSubstr("job one")));
}

TEST_F(EventStreamsTest, QuietStreamSendsComments) {
    register_job("one");
    const std::string got = read("/v1/events/stream", ": nothing new\n\n", [&] {
        clock.advance_ns(15'000'000'000);
        service.on_thread([&] { api.tick(); });
    });
    EXPECT_THAT(got, HasSubstr("job one"));
}

TEST_F(EventStreamsTest, StatusIsRepeatedForReadersThatAskForIt) {
    register_job("one");
    const auto statuses_in = [](std::string_view text) {
        constexpr std::string_view kStatus = "\n\nevent: status\ndata: {\"plan\":1,\"nodes\":[]";
        int found = 0;
        for (std::size_t at = 0; (at = text.find(kStatus, at)) != std::string::npos; ++at) ++found;
        return found;
    };
    int statuses = 0;
    std::string got;
    const auto take = [&](std::string_view part) {
        got += part;
        if (statuses_in(got) == statuses) return true;
        EXPECT_EQ(statuses_in(got), ++statuses);
        // First one nanosecond too early for the next status, then on time.
        for (const std::int64_t step_ns : {999'999'999, 1}) {
            clock.advance_ns(step_ns);
            service.on_thread([&] { api.tick(); });
        }
        return statuses < 3;
    };
    const auto read = http_get_stream(service.socket, "/v1/events/stream?after=1&status_ms=1000", take);
    ASSERT_TRUE(read.has_value()) << read.error().message;
    EXPECT_THAT(got, StartsWith("id: 2\nevent: plan_changed\n")) << "events first, and a status has no number";
    EXPECT_THAT(got, HasSubstr("\"datasets\":[],\"jobs\":[{\"name\":\"one\""));
    EXPECT_THAT(got, Not(HasSubstr("id: 3")));
    for (const char* wrong : {"99", "3600001", "x"}) {
        const auto refused = http_request(service.socket, "GET", std::string("/v1/events/stream?status_ms=") + wrong);
        EXPECT_EQ(refused->status, 400u);
    }
}

TEST_F(EventStreamsTest, EndOfServiceEndsStreamsCleanly) {
    register_job("one");
    const std::string got = read("/v1/events/stream", "never", [&] { service.on_thread([&] { api.end_waits(); }); });
    EXPECT_THAT(got, HasSubstr("job one"));
}

TEST_F(EventStreamsTest, ClientThatLeavesWhileWaitingIsForgotten) {
    const auto left = http_request(service.socket, "GET", "/v1/events?after=0&wait_s=60", {}, {.timeout_ms = 50});
    EXPECT_FALSE(left.has_value());
    while (service.on_thread([&] { return service.server().connections(); }) > 0) {
    }
    register_job("one");
    EXPECT_EQ(http_request(service.socket, "GET", "/v1/events")->status, 200u);
}

}  // namespace
}  // namespace larder::allocator
